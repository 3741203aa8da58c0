"""torchtune as a package that a worker can load and run on fake tensors.

Its last release, 0.6.1, is of another time than this worker's torchao, and imports readers of datasets and tokenizers
with its models. A proof reads no data: where these are not installed, names stand in for them while it is imported.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.recording.patches import replaced
from plimsoll.service.worker.stacks.torchtune.offload import streams_told_apart
from plimsoll.service.worker.training.foreign_code import ScalarsOfFakeTensors, names_given, quiet, unused_modules
from plimsoll.service.worker.training.kernels.attention import traced_attention

# What only its data, tokenizers and command line are made of.
UNUSED = frozenset({"PIL", "blobfile", "datasets", "kagglehub", "omegaconf", "sentencepiece", "tiktoken", "torchdata"})
# Where torchao 0.18 has what torchtune 0.6.1 looks for, and what of it was taken away: quantizers that no recipe of a
# plan names.
NF4_BEFORE, NF4_NOW = "torchao.dtypes.nf4tensor", "torchao.quantization.quantize_.workflows.nf4.nf4_tensor"
GONE_QUANTIZERS = ("int4_weight_only", "int8_dynamic_activation_int4_weight")
GONE_SWITCHES = ("disable_4w_fake_quant", "disable_8da4w_fake_quant", "enable_4w_fake_quant", "enable_8da4w_fake_quant")


def load_torchtune() -> Any:
    """Return the package with its models and training code; a worker without it raises `NotYetAvailable`."""
    try:
        importlib.import_module("torchao")
        if importlib.util.find_spec("torchtune") is None:
            raise ModuleNotFoundError("torchtune")
        with quiet("torchtune"), _as_it_was_written_for():
            torchtune = importlib.import_module("torchtune")
            for name in ("training", "modules.loss", "modules.peft"):
                importlib.import_module(f"torchtune.{name}")
    except ModuleNotFoundError as error:
        raise NotYetAvailable(
            "torchtune's steps are traced by its own code, which this worker does not have: install torchao and, with "
            "pip's option --no-deps, torchtune 0.6.1 there.",
            pointer="/layout/framework",
        ) from error
    return torchtune


@contextlib.contextmanager
def _as_it_was_written_for() -> Iterator[None]:
    """Let imports find what they name, and leave no stand-in behind for others."""
    from torchao import dtypes, quantization
    from torchao.quantization.qat import linear

    sys.modules.setdefault(NF4_BEFORE, importlib.import_module(NF4_NOW))
    with (
        unused_modules(UNUSED),
        _names_added(dtypes, ("TensorCoreTiledLayout",)),
        _names_added(quantization, GONE_QUANTIZERS),
        _names_added(linear, GONE_SWITCHES),
    ):
        yield


def _names_added(module: Any, names: tuple[str, ...]) -> contextlib.AbstractContextManager[None]:
    return names_given(module, **{name: None for name in names if not hasattr(module, name)})


@contextlib.contextmanager
def runnable_torchtune() -> Iterator[None]:
    """Let torchtune's code run in fake mode, its attention in the kernel that a GPU has for it."""
    from torchtune.models.llama3_1._position_embeddings import Llama3ScaledRoPE
    from torchtune.training import _distributed

    unpinned = functools.partial(_distributed.CPUOffloadPolicy, pin_memory=False)  # which a fake tensor cannot be
    with (
        quiet("torchtune"),
        replaced(_distributed, "CPUOffloadPolicy", unpinned),
        replaced(Llama3ScaledRoPE, "apply_scaling", _scaled),
        replaced(nn.functional, "scaled_dot_product_attention", _attention),
        streams_told_apart(),
        ScalarsOfFakeTensors(),
    ):
        yield


def _scaled(_rope: Any, frequencies: torch.Tensor, *_told: object) -> torch.Tensor:
    """Return scaled frequencies, which torchtune reads one by one: fake ones have no values."""
    return frequencies.clone()


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = True,  # noqa: ARG001 - torch's signature
) -> torch.Tensor:
    """Return the attention's output [batch, heads, sequence, head_dim]."""
    output, _ = traced_attention(nn.Identity(), query, key, value, attn_mask, dropout_p)
    return output.transpose(1, 2)
