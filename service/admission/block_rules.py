"""Experts whose fp8 weights are scaled in blocks: a rank's share of their width has to be whole blocks.

Sources: vllm, model_executor/layers/quantization/fp8.py, create_weights of the experts (0.8.5 to 0.28.0; from 0.29.0 on
smaller blocks may be made of a checkpoint's); sglang, srt/layers/quantization/fp8.py (0.5.23), but for AMD's kernels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planners.serving.engine import is_older
from service.admission.launches import Launch
from service.models.resolving import ResolvedModel

REFINED_IN_VLLM = "0.29"
AMD = "mi"
# Qwen's own copies in fp8, by their cards: "fine-grained fp8 quantization with block size of 128".
QWEN, QWENS_BLOCK = re.compile(r"^Qwen/Qwen3\b.*-FP8$"), 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertBlocks:
    """The width of one expert, and of the blocks that its weights are scaled in."""

    width: int
    block: int


def expert_blocks(asked: object, model: ResolvedModel) -> ExpertBlocks | None:
    """Return the blocks of a checkpoint's experts, None where it has none or their size is not known."""
    width = model.config.get("moe_intermediate_size") or _width_of_mixture(model)
    stored = model.config.get("quantization_config")
    sizes = stored.get("weight_block_size") if isinstance(stored, Mapping) else None
    block: Any = sizes[0] if isinstance(sizes, list) and sizes else None
    if block is None and isinstance(asked, str) and QWEN.match(asked):
        block = QWENS_BLOCK
    if model.stored is None or model.stored.weights != "fp8" or not isinstance(block, int):
        return None
    return ExpertBlocks(width=width, block=block) if isinstance(width, int) and block > 0 else None


def _width_of_mixture(model: ResolvedModel) -> Any:
    # Where every layer has experts, the width of them is the feed-forward's (MiniMax, Mixtral).
    return model.config.get("intermediate_size") if "num_local_experts" in model.config else None


def split_block(launch: Launch, gpu: str, blocks: ExpertBlocks | None) -> str | None:
    """Return why an engine does not divide a checkpoint's experts as it is told, None where it may."""
    version = launch.request.get("serving", {}).get("engine_version")
    in_vllm = launch.engine == "vllm" and version is not None and is_older(version, REFINED_IN_VLLM)
    in_sglang = launch.engine == "sglang" and not gpu.startswith(AMD)
    if blocks is None or not (in_vllm or in_sglang):
        return None
    layout = launch.request["layout"]
    ranks = int(layout["tensor_parallel"]) * int(layout.get("attention_data_parallel", 1))
    sharing = ranks // int(layout.get("expert_parallel", 1))
    if sharing < 1 or blocks.width % sharing or blocks.width // sharing % blocks.block == 0:
        return None
    whole = "--enable-expert-parallel" if in_vllm else f"--ep-size {ranks}"
    return (
        f"{sharing} ranks share experts {blocks.width:,} wide, {blocks.width // sharing:,} each, which is no multiple "
        f"of the {blocks.block} of their fp8 blocks: ask for {whole}, which leaves experts whole, or for fewer ranks"
    )
