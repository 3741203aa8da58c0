"""What a GPU worker holds besides weights and cache: a profiling run's peak, CUDA graphs, and what torch does not see.

The fitted figures and their logs are named in `profile_run.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from plimsoll.planners.architecture import Block, ModelSpec, Region, Split
from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.ground.data_files import read_toml
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.formats.weight_format import BITS_PER_BYTE
from plimsoll.planners.serving.releases.profile import EngineProfile
from plimsoll.planners.serving.settings.settings import Settings
from plimsoll.planners.serving.weights.stages import LATENT_UP_PROJECTION, has_vision

FIGURES = Path(__file__).with_name("profile_run.toml")
# The architecture names a feed-forward's divided tensors so: gate, up (or inner) and product.
FEED_FORWARD_PREFIX = "feed_forward_"
MXFP4, NF4 = "mxfp4", "nf4"
MOST_KEPT_WIDTHS = 1024
# Eight requests at their longest, or four blocks of each, but no more than 64k tokens.
FULL_CONTEXTS, BLOCKS_OF_A_REQUEST, MOST_CONTEXT_TOKENS = 8, 4, 64 * 1024
# Captured batch sizes: 1, 2, 4, then every 8th up to 256, every 16th beyond
# (vllm/config/compilation.py).
SMALL_CAPTURES = (1, 2, 4)
CAPTURE_STEP, COARSE_CAPTURE_FROM, COARSE_CAPTURE_STEP = 8, 256, 16


def fitted_figures() -> Mapping[str, Any]:
    """Return the figures that were fitted on start-up logs, by what they are of; read once."""
    return read_toml(FIGURES)


def activation_bytes(model: ModelSpec, settings: Settings, degrees: Degrees, *, has_head: bool) -> int:
    """Return the profiling run's peak above the weights.

    The run sends `max_num_batched_tokens` tokens through the layers and then
    samples `max_num_seqs` rows of logits, which are gathered whole on every
    tensor-parallel rank; the larger of the two moments counts. Only the last
    pipeline stage samples.
    """
    table = fitted_figures()["activation"]
    dense_bytes = settings.weights.dense_bytes
    hidden = settings.max_num_batched_tokens * model.hidden_size * dense_bytes
    received = table["pipeline_hidden_states"] * hidden if degrees.pipeline_parallel > 1 else 0.0
    inner = _widest_feed_forward(ByIdentity(model)) / degrees.tensor_parallel
    unpacked = unpacked_elements(model, settings, degrees)
    within = max(
        settings.max_num_batched_tokens * dense_bytes * inner + unpacked.matrix * dense_bytes,
        latent_context_bytes(model, settings, degrees),
        expert_layer_bytes(model, settings, degrees) + unpacked.experts * dense_bytes,
    )
    layer = within + table["layer_hidden_states"] * hidden
    sampler = 0.0
    if has_head:
        sampler = sampler_bytes(model, settings) + table["hidden_states_copies"] * hidden
    kept = expert_workspace_bytes(model, settings, degrees)
    if _has_vision(ByIdentity(model)):
        kept += round(table["vision_gib"] * GIB)
    peak: float = table["constant_gib"] * GIB + received + kept + max(layer, sampler)
    return round(peak)


def latent_workspace_tokens(*, max_model_len: int, max_num_seqs: int, block_size: int) -> int:
    """Return how many tokens of earlier chunks a latent attention expands to keys and values at once.

    Source: vllm/model_executor/layers/attention/mla_attention.py, determine_chunked_prefill_workspace_size.
    """
    wanted = max(FULL_CONTEXTS * max_model_len, BLOCKS_OF_A_REQUEST * max_num_seqs * block_size)
    return max(min(wanted, MOST_CONTEXT_TOKENS), max_num_seqs * block_size)


def latent_context_bytes(model: ModelSpec, settings: Settings, degrees: Degrees) -> int:
    """Return what the profiling run expands the largest chunk of earlier tokens to, on one rank's heads; 0 without.

    Only an engine that profiles makes it.

    Source: the same file, forward: an empty [tokens, heads, features of key and value] while there is nothing cached.
    """
    if not settings.profile.profiles_latent_contexts:
        return 0
    tokens = latent_workspace_tokens(
        max_model_len=settings.max_model_len, max_num_seqs=settings.max_num_seqs, block_size=settings.block_size
    )
    features = _latent_features(ByIdentity(model)) // degrees.tensor_parallel
    return tokens * features * settings.weights.dense_bytes


@lru_cache(maxsize=MOST_KEPT_WIDTHS)
def _latent_features(same: ByIdentity[ModelSpec]) -> int:
    """Return the features that all heads' keys, the rotated part apart, and values have of a latent."""
    ups = (weight for block in same.value.layers for weight in block.weights if LATENT_UP_PROJECTION in weight.name)
    return max((weight.shape[0] for weight in ups), default=0)


def sampler_bytes(model: ModelSpec, settings: Settings) -> float:
    """Return what sampling `max_num_seqs` rows takes: the logits, what is made of them, and the kernel's kept rows."""
    profile, rows = settings.profile, settings.max_num_seqs
    per_logit = profile.sampler_bytes_per_logit + settings.weights.dense_bytes
    scratch = min(profile.sampler_scratch_rows, rows) * FP32_BYTES
    return model.vocabulary_size * (rows * per_logit + scratch)


def expert_workspace_bytes(model: ModelSpec, settings: Settings, degrees: Degrees) -> int:
    """Return the buffers of the experts' kernel, which stay once the profiling run has made them.

    Two buffers hold a row for every expert that works on a token: as wide as the
    product or the output, and as gate and up together or the output. Attention
    data parallel ranks gather all their tokens first. The kernels for mxfp4 keep
    none (gpt-oss-20b's log).

    Source: vllm/model_executor/layers/fused_moe/fused_moe.py, TritonExperts.workspace_shapes;
    logs of Qwen3-30B-A3B (0.51 GiB), Qwen1.5-MoE (0.30), DeepSeek-V2-Lite (0.44): all within 0.01.
    """
    if settings.weights.scheme == MXFP4:
        return 0
    widths = _widest_experts(ByIdentity(model), degrees.expert_tensor_parallel)
    return _expert_rows(model, settings, degrees) * widths.buffers * settings.weights.dense_bytes


def expert_layer_bytes(model: ModelSpec, settings: Settings, degrees: Degrees) -> int:
    """Return what a layer's experts make besides the kept buffers: their output, and in 8 bits what they multiply.

    Two copies of a byte an element live together, of the input and of gate times up.

    Source: vllm/model_executor/layers/fused_moe: modular_kernel.py, FusedMoEModularKernel.apply (an output as the
    input); fused_moe.py, TritonExperts.apply (moe_kernel_quantize_input of the second product's input, while the
    first's, which `prepare` made, is alive).
    """
    widths = _widest_experts(ByIdentity(model), degrees.expert_tensor_parallel)
    if not widths.product:
        return 0
    inputs = settings.max_num_batched_tokens * degrees.attention_data_parallel * model.hidden_size
    output = inputs * settings.weights.dense_bytes
    if settings.weights.element_bits != BITS_PER_BYTE:
        return output
    return output + inputs + _expert_rows(model, settings, degrees) * widths.product


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """Elements that a layer unpacks at once, on a rank: of its largest matrix, and of all its experts."""

    matrix: int = 0
    experts: int = 0


def unpacked_elements(model: ModelSpec, settings: Settings, degrees: Degrees) -> Unpacked:
    """Return what a layer unpacks to multiply by: with bitsandbytes' kernels a matrix, or all experts.

    Source: vllm/model_executor/layers/quantization/bitsandbytes.py, _apply_bnb_4bit (matmul_4bit unpacks the
    matrix of many tokens), BitsAndBytesMoEMethod._apply_4bit_dequnt (both matrices of every expert).
    """
    if settings.weights.scheme != NF4:
        return Unpacked()
    matrices = [[weight for weight in block.weights if weight.is_linear] for block in model.layers]
    dense = (weight.elements for layer in matrices for weight in layer if weight.experts == 1)
    experts = (sum(weight.elements for weight in layer if weight.experts > 1) for layer in matrices)
    return Unpacked(
        matrix=max(dense, default=0) // degrees.tensor_parallel,
        experts=max(experts, default=0) // degrees.ranks_per_stage,
    )


def _expert_rows(model: ModelSpec, settings: Settings, degrees: Degrees) -> int:
    """Return the rows of a layer's experts: one for every expert that works on a token."""
    return settings.max_num_batched_tokens * degrees.attention_data_parallel * model.experts_per_token


@lru_cache(maxsize=MOST_KEPT_WIDTHS)
def _has_vision(same: ByIdentity[ModelSpec]) -> bool:
    return has_vision(same.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertWidths:
    """Elements of one row of a layer's experts on a rank: of both buffers of their kernel, and of gate times up."""

    buffers: int = 0
    product: int = 0


@lru_cache(maxsize=MOST_KEPT_WIDTHS)
def _widest_experts(same: ByIdentity[ModelSpec], ranks: int) -> ExpertWidths:
    found = [_expert_widths(block, ranks) for block in same.value.layers]
    return max(found, key=lambda widths: widths.buffers, default=ExpertWidths())


def _expert_widths(block: Block, ranks: int) -> ExpertWidths:
    matrices = [weight for weight in block.weights if weight.experts > 1 and weight.is_linear]
    inner = [weight for weight in matrices if weight.split is Split.ROW]
    if not inner:
        return ExpertWidths()
    (down,) = inner
    each = down.elements // down.experts
    # Where the experts' rows follow one another in one matrix, the divided length is that of all of them (DBRX).
    length = down.shape[down.dim or 0]
    whole = length if not down.is_fused or down.shape[0] == down.experts else length // down.experts
    hidden = each // whole
    first = sum(weight.elements for weight in matrices if weight is not down) // down.experts // hidden
    product = whole // ranks
    return ExpertWidths(buffers=max(product, hidden) + max(first // ranks, hidden), product=product)


def non_torch_bytes(profile: EngineProfile, degrees: Degrees) -> int:
    """Return what a worker holds outside torch's allocator once its communicators stand.

    Ranks that share experts out communicate within the layers as tensor ranks do.
    """
    if degrees.ranks_per_stage > 1:
        return profile.non_torch.tensor_bytes
    return profile.non_torch.pipeline_bytes if degrees.pipeline_parallel > 1 else profile.non_torch.single_bytes


def cuda_graph_bytes(layers: int, max_num_seqs: int) -> int:
    """Return the memory of the captured graphs of a stage, in proportion to the sizes captured."""
    table: Mapping[str, float] = fitted_figures()["cuda_graphs"]
    captured = captured_sizes(max_num_seqs)
    full = (table["constant_gib"] + table["gib_per_layer"] * layers) * GIB
    return round(full * captured / table["sizes"])


def captured_sizes(max_num_seqs: int) -> int:
    """Return how many batch sizes the engine captures by default: 51 for 256 sequences and more."""
    table: Mapping[str, int] = fitted_figures()["cuda_graphs"]
    largest: int = min(table["largest_size"], table["sizes_per_sequence"] * max_num_seqs)
    small = len([size for size in SMALL_CAPTURES if size <= largest])
    fine: int = min(largest, COARSE_CAPTURE_FROM) // CAPTURE_STEP
    coarse: int = max(0, largest - COARSE_CAPTURE_FROM) // COARSE_CAPTURE_STEP
    return small + fine + coarse


@lru_cache(maxsize=MOST_KEPT_WIDTHS)
def _widest_feed_forward(same: ByIdentity[ModelSpec]) -> int:
    return max(_feed_forward_width(block) for block in same.value.layers)


def _feed_forward_width(block: Block) -> int:
    return sum(
        tensor.width
        for tensor in block.tensors
        if tensor.region is Region.TENSOR and tensor.name.startswith(FEED_FORWARD_PREFIX)
    )
