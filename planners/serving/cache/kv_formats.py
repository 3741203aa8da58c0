"""The formats a cache is kept in, and what one token or one sequence takes of a layer's cache on one rank."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.planners.architecture import Block, KvKind, KvState
from plimsoll.planners.ground.errors import InvalidQuestion, NotYetAvailable
from plimsoll.planners.serving.releases.profile import EngineProfile
from plimsoll.planners.serving.releases.rules import PACKED_LATENTS, LatentCaches

# The sparse attention of DeepSeek-V3.2 keeps its index in fp8 whatever the cache's format, with a float32 scale for
# each 128 elements: vllm/model_executor/models/deepseek_v2.py, DeepseekV32IndexerCache; sglang,
# mem_cache/memory_pool.py, DSATokenToKVPool; tensorrt_llm, _torch/attention_backend/sparse/dsa.py.
INDEX_SCALE_ELEMENTS, INDEX_SCALE_BYTES = 128, 4
# The index of MiniMax-M3's blocks is in 16 bits by default: vllm/config/attention.py, indexer_kv_dtype; sglang,
# mem_cache/memory_pool.py, get_minimax_sparse_index_dtype; transformers keeps every index in the model's dtype.
PLAIN_INDEX_BYTES = 2
# A sparse latent in fp8 (fp8_ds_mla) is 512 bytes, four float32 scales and 64 rotary elements in 16 bits:
# vllm/v1/kv_cache_interface.py, MLAAttentionSpec; sglang, calculate_mla_kv_cache_dim.
SPARSE_LATENT_WIDTH, SPARSE_LATENT_FP8_BYTES = 576, 656


@dataclass(frozen=True, slots=True, kw_only=True)
class KvFormat:
    """How one element of the cache is stored, and the scale of each head's key or value."""

    name: str
    bits_per_element: float
    scale_bytes_per_head: int = 0


KV_FORMATS: Mapping[str, KvFormat] = {
    kv_format.name: kv_format
    for kv_format in (
        # The cache has the activations' type where nothing else is asked for, and those of weights in fp32 are in fp32.
        KvFormat(name="fp32", bits_per_element=32),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTerms:
    """What decides a cache's layout besides the model.

    `in_flight_tokens` are those of batches under way, which a sliding window keeps
    besides its own. `activation_bytes` is one element of the model's dtype. A
    recurrent layer keeps a state for each of `draft_tokens` too. `batch_sequences` is
    the largest batch, of all stages together. An encoder that states no length of
    its own is given `source_tokens`. A sequence has `checkpoint_blocks` more of recurrent
    layers, and a block beside them is a multiple of `state_block_tokens`.
    `cache_implementation` is which of its caches an engine uses that has several.
    """

    model_type: str
    kv: KvFormat
    profile: EngineProfile
    block_size: int
    max_model_len: int
    in_flight_tokens: int
    activation_bytes: int
    draft_tokens: int = 0
    batch_sequences: int = 1
    source_tokens: int = 0
    checkpoint_blocks: int = 0
    state_block_tokens: int = 1
    cache_implementation: str | None = None

    def tokens_of_source(self, state: KvState) -> int:
        """Return the tokens of an encoder's output that a layer caches, 0 where it caches none."""
        if state.kind is not KvKind.CROSS_ATTENTION:
            return 0
        return self.source_tokens if state.source_tokens is None else state.source_tokens


def kv_format(name: str, profile: EngineProfile) -> KvFormat:
    """Return the named format; raise with the allowed ones if this engine version lacks it."""
    if name not in profile.kv_dtypes:
        raise InvalidQuestion(
            f"{profile.engine} {profile.version} has no KV cache in {name[:40]!r}; "
            f"allowed are {', '.join(profile.kv_dtypes)}.",
            pointer="/serving/kv_cache",
        )
    return KV_FORMATS[name]


def layer_bytes_per_token(
    state: KvState, kv: KvFormat, *, tensor_parallel: int = 1, latents: LatentCaches = PACKED_LATENTS
) -> int:
    """Return what one token adds to one layer's cache on one rank, in bytes; a recurrent layer grows by none.

    An index of blocks, as a latent, stands whole on every rank. Raises
    `InvalidQuestion` for a format that a latent cache cannot have, and
    `NotYetAvailable` for a cache that is not described.
    """
    if state.kind is KvKind.RECURRENT:
        return 0
    if state.kind is KvKind.COMPRESSED:
        raise NotYetAvailable("A compressed cache (DeepSeek-V4) has no bytes of a single token.", pointer="/model")
    if state.latent_width:
        return _latent_bytes(state, kv, latents)
    heads = -(-state.heads // tensor_parallel)
    elements = heads * state.elements_per_head
    scales = heads * kv.scale_bytes_per_head
    return int(elements * kv.bits_per_element / 8) + scales + state.index_width * PLAIN_INDEX_BYTES


def _latent_bytes(state: KvState, kv: KvFormat, latents: LatentCaches) -> int:
    if kv.name not in latents.dtypes:
        raise InvalidQuestion(
            f"A latent cache has no format {kv.name}; allowed are {', '.join(latents.dtypes)}.",
            pointer="/serving/kv_cache",
        )
    latent = int(state.latent_width * kv.bits_per_element / 8)
    if not state.index_width:
        return latent
    if not latents.quantizes_index:
        return latent + state.index_width * PLAIN_INDEX_BYTES
    if kv.name == "fp8" and latents.packs_sparse:
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


def sequence_state_bytes(block: Block, terms: CacheTerms, tensor_parallel: int, *, draft_tokens: int) -> int:
    """Return the same in an engine's own formats."""
    return recurrent_state_bytes(
        block,
        tensor_parallel=tensor_parallel,
        activation_bytes=terms.activation_bytes,
        memory_bytes=terms.profile.recurrent_memory_bytes(terms.model_type, terms.activation_bytes),
        draft_tokens=draft_tokens,
    )
