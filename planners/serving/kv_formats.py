"""The formats a cache is kept in, and what one token or one sequence takes of a layer's cache on one rank."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from planners.architecture import Block, KvKind, KvState
from planners.errors import InvalidQuestion, NotYetAvailable
from planners.serving.engine import EngineProfile

# The sparse attention of DeepSeek-V3.2 keeps its index in fp8 whatever the cache's format, with a float32 scale for
# each 128 elements: vllm/model_executor/models/deepseek_v2.py, DeepseekV32IndexerCache.
INDEX_SCALE_ELEMENTS, INDEX_SCALE_BYTES = 128, 4
# Its latent in fp8 (fp8_ds_mla) is 512 bytes, four float32 scales and 64 rotary elements in 16 bits:
# vllm/v1/kv_cache_interface.py, MLAAttentionSpec.
SPARSE_LATENT_WIDTH, SPARSE_LATENT_FP8_BYTES = 576, 656
# Formats a latent cache can have besides its own 16 bits.
LATENT_FORMATS = ("bf16", "fp16", "fp32", "fp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class KvFormat:
    """How one element of the cache is stored, and the scale of each head's key or value."""

    name: str
    bits_per_element: float
    scale_bytes_per_head: int = 0


KV_FORMATS: Mapping[str, KvFormat] = {
    kv_format.name: kv_format
    for kv_format in (
        KvFormat(name="bf16", bits_per_element=16),
        KvFormat(name="fp16", bits_per_element=16),
        # One scale a layer: nothing for each token.
        KvFormat(name="fp8", bits_per_element=8),
        # int8_per_token_head: a float32 scale each for key and value (vllm-project/vllm#38378).
        KvFormat(name="int8", bits_per_element=8, scale_bytes_per_head=8),
        # 4 bits and an 8-bit scale for each 16 elements.
        KvFormat(name="nvfp4", bits_per_element=4.5),
    )
}


def kv_format(name: str, profile: EngineProfile) -> KvFormat:
    """Return the named format; raise with the allowed ones if this engine version lacks it."""
    if name not in profile.kv_dtypes:
        raise InvalidQuestion(
            f"{profile.engine} {profile.version} has no KV cache in {name[:40]!r}; "
            f"allowed are {', '.join(profile.kv_dtypes)}.",
            pointer="/serving/kv_cache",
        )
    return KV_FORMATS[name]


def layer_bytes_per_token(state: KvState, kv: KvFormat, *, tensor_parallel: int = 1) -> int:
    """Return what one token adds to one layer's cache on one rank, in bytes; a recurrent layer grows by none.

    Raises `InvalidQuestion` for a format that a latent cache cannot have, and
    `NotYetAvailable` for a cache that is not described.
    """
    if state.kind is KvKind.RECURRENT:
        return 0
    if state.kind is KvKind.COMPRESSED:
        raise NotYetAvailable("A compressed cache (DeepSeek-V4) is not sized yet.", pointer="/model")
    if state.kind is KvKind.LATENT:
        return _latent_bytes(state, kv)
    if state.index_width:
        raise NotYetAvailable("A cache of keys with an index of blocks is not sized yet.", pointer="/model")
    heads = -(-state.heads // tensor_parallel)
    elements = state.local_elements_per_token(tensor_parallel)
    return int(elements * kv.bits_per_element / 8) + heads * kv.scale_bytes_per_head


def _latent_bytes(state: KvState, kv: KvFormat) -> int:
    if kv.name not in LATENT_FORMATS:
        raise InvalidQuestion(
            f"A latent cache has no format {kv.name}; allowed are bf16, fp16 and fp8.", pointer="/serving/kv_cache"
        )
    latent = int(state.latent_width * kv.bits_per_element / 8)
    if not state.index_width:
        return latent
    if kv.name == "fp8":
        if state.latent_width != SPARSE_LATENT_WIDTH:
            raise NotYetAvailable(
                f"The packed fp8 form of a latent of {state.latent_width} elements is not known.",
                pointer="/serving/kv_cache",
            )
        latent = SPARSE_LATENT_FP8_BYTES
    return latent + state.index_width + -(-state.index_width // INDEX_SCALE_ELEMENTS) * INDEX_SCALE_BYTES


def recurrent_state_bytes(
    block: Block, *, tensor_parallel: int, activation_bytes: int, memory_bytes: int, draft_tokens: int = 0
) -> int:
    """Return the state one sequence has in a recurrent layer, on one rank.

    The convolution's channels are divided as its weight is: groups fewer than the
    ranks are replicated. It keeps the inputs of `draft_tokens` besides its own.

    Source: vllm/model_executor/layers/mamba/mamba_utils.py, MambaStateShapeCalculator.
    """
    if block.kv is None or block.kv.recurrent is None:
        return 0
    state = block.kv.recurrent
    if state.memory_elements % tensor_parallel:
        raise NotYetAvailable(
            f"A state of {state.memory_elements} elements does not divide over tensor_parallel {tensor_parallel}.",
            pointer="/layout/tensor_parallel",
        )
    convolution = 0
    if state.convolution_elements:
        filters = [weight for weight in block.weights if "conv1d.weight" in weight.name]
        channels = sum(weight.shape[0] for weight in filters)
        local = sum(weight.local_shape(tensor_parallel)[0] for weight in filters)
        convolution = math.ceil(state.convolution_elements * local / channels) + draft_tokens * local
    return convolution * activation_bytes + state.memory_elements // tensor_parallel * memory_bytes
