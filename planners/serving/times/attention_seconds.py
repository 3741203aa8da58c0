"""Seconds of one rank's attention and recurrences: of a prompt, and of one new token in each of several sequences."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from plimsoll.planners.architecture import Block, KvKind, Operation, OperationKind, Region
from plimsoll.planners.architecture.operation import Scan
from plimsoll.planners.operators.absorbed import HEAD_SIZE, LATENT_SIZE, absorbed_products
from plimsoll.planners.operators.attention import TokenAttention, prompt_attention, token_attention
from plimsoll.planners.operators.formats import operations_per_second
from plimsoll.planners.operators.latent import LatentAttention, latent_prompt_attention, latent_token_attention
from plimsoll.planners.operators.products import products
from plimsoll.planners.operators.recurrent import PROMPT, TOKEN, Recurrence, recurrence
from plimsoll.planners.operators.sparse_latent import SparseBlock
from plimsoll.planners.operators.tables import Evidence
from plimsoll.planners.serving.cache.compressed_rows import index_row_bytes, row_bytes
from plimsoll.planners.serving.cache.kv_formats import KvFormat, layer_bytes_per_token
from plimsoll.planners.serving.formats.operand_formats import PLAIN
from plimsoll.planners.serving.times.curve import SIZES, FloatArray
from plimsoll.planners.serving.times.rank_operators import (
    LATENT_UP,
    MOST_KEPT,
    Rank,
    measured_family,
    within_blocks_seconds,
)
from plimsoll.planners.serving.times.sparse_blocks import block_of, is_indexer, sparse_token_seconds

FP8_CACHE = "fp8"
# An attention that no table holds is taken to reach this part of what the card could, and to take a kernel's time at
# least: measured token attention over 8,192 positions and more reaches 0.55 to 0.85 of it.
UNMEASURED_SHARE = 0.6
KERNEL_SECONDS = 5e-6
STATE_BYTES = 4
SIXTEEN_BITS, EIGHT_BITS = ("bf16",), ("fp8",)
# An indexer scores in 8 bits (vllm/utils/deep_gemm.py, fp8_mqa_logits). Measured blocks of 8,192 tokens take so much
# longer for each token cached before them that this is 0.40 to 0.63 of H200's rate and 0.30 to 0.39 of B200's.
INDEX_SHARE = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedRank:
    """A rank, the format of its cache and over how many ranks the tokens of a sequence are dealt out."""

    rank: Rank
    cache: KvFormat
    decode_context_parallel: int

    @property
    def cache_name(self) -> str:
        """Return the format of the cache by its name among the measured ones."""
        return FP8_CACHE if self.cache.name == FP8_CACHE else PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layers:
    """Like layers that attend or scan: one of their operations, and how many layers there are."""

    block: Block
    operation: Operation
    repeats: int

    @property
    def is_latent(self) -> bool:
        """Return whether the cache is a latent that the heads share."""
        state = self.block.kv
        return state is not None and state.kind is KvKind.LATENT and self.operation.region is Region.TENSOR

    @property
    def is_whole(self) -> bool:
        """Return whether the layer's attention was measured with all that is around it."""
        return measured_family(self.block) is not None

    @property
    def is_measured(self) -> bool:
        """Return whether a table holds such an attention: over whole keys and values, or a latent."""
        state = self.block.kv
        return state is None or (state.kind is not KvKind.COMPRESSED and self.operation.region is Region.TENSOR)

    def positions(self, context_tokens: float) -> float:
        """Return how many positions a token at this context looks back on."""
        positions = context_tokens / self.operation.tokens_per_position
        return max(1.0, min(positions, self.operation.window) if self.operation.window else positions)


def _layers(rank: Rank) -> Iterator[_Layers]:
    """Yield each kind of layer by what attends or scans in it, an indexer by itself."""
    kinds = (OperationKind.ATTENTION, OperationKind.SCAN)
    for block in rank.model.value.layers:
        for operation in block.operations:
            if operation.kind in kinds:
                yield _Layers(block=block, operation=operation, repeats=block.repeats)


@lru_cache(maxsize=MOST_KEPT)
def token_seconds(cached: CachedRank, context_tokens: float) -> FloatArray:
    """Return the seconds of all layers' attention of one token in each of `SIZES` sequences at a context."""
    seconds = np.zeros_like(SIZES)
    for layers in _layers(cached.rank):
        if layers.operation.kind is OperationKind.SCAN:
            each = _scan_seconds(layers, cached.rank, SIZES, 1, TOKEN)
        elif layers.is_whole:
            each = _whole_token_seconds(layers, cached, context_tokens)
        elif not layers.is_measured:
            each = _unmeasured_token_seconds(layers, cached, context_tokens)
        elif layers.is_latent:
            each = _latent_token_seconds(layers, cached, context_tokens)
        else:
            each = _grouped_token_seconds(layers, cached, context_tokens)
        seconds += layers.repeats * each
    return seconds


def _whole_token_seconds(layers: _Layers, cached: CachedRank, context_tokens: float) -> FloatArray:
    """Return a layer's seconds by its block; those of its indexer are in them."""
    found = None if is_indexer(layers.operation) else block_of(layers.block, cached.rank, cached.cache_name)
    if found is None:
        return np.zeros_like(SIZES)
    heads = layers.operation.heads / cached.rank.tensor_parallel
    return sparse_token_seconds(found, heads, context_tokens / cached.decode_context_parallel)


def _grouped_token_seconds(layers: _Layers, cached: CachedRank, context_tokens: float) -> FloatArray:
    """Return a layer's seconds with heads of keys; ranks that hold one head's sequences by parts share the queries."""
    rank, ranks = cached.rank, cached.decode_context_parallel
    kernel = token_attention(rank.gpu.value, rank.operators_engine, layers.operation.key_dim, cached.cache_name)
    heads, key_heads = _heads(layers, rank)
    positions = max(1.0, layers.positions(context_tokens) / ranks)
    return kernel.seconds(SIZES, positions, heads * ranks, key_heads)


def _latent_token_seconds(layers: _Layers, cached: CachedRank, context_tokens: float) -> FloatArray:
    """Return a layer's seconds over latents, with the products that bring queries and results to their width.

    The kernel is of a head's features; ranks that share a sequence attend with all their queries.
    """
    rank, ranks = cached.rank, cached.decode_context_parallel
    kernel = latent_token_attention(rank.gpu.value, rank.operators_engine, cached.cache_name)
    if kernel is None:
        return _unmeasured_token_seconds(layers, cached, context_tokens)
    heads = layers.operation.heads / rank.tensor_parallel
    positions = max(1.0, layers.positions(context_tokens) / ranks)
    return kernel.seconds(SIZES, positions, heads * ranks) + _absorbed_seconds(layers, rank, heads)


def _absorbed_seconds(layers: _Layers, rank: Rank, heads: float) -> FloatArray:
    """Return the two products of each head; of other sizes than DeepSeek-V3's one product of both weights."""
    operation, shape = layers.operation, _up_shape(layers)
    kernel = absorbed_products(rank.gpu.value, rank.operators_engine)
    is_alike = shape == (LATENT_SIZE, 2 * HEAD_SIZE * operation.heads) and operation.value_dim == HEAD_SIZE
    if kernel is None or not is_alike:
        return _up_seconds(layers, rank, SIZES)
    return kernel.seconds(SIZES, heads)


def _unmeasured_token_seconds(layers: _Layers, cached: CachedRank, context_tokens: float) -> FloatArray:
    """Return a layer's seconds by the card's published rates: it reads the cached positions and scores them."""
    gpu, operation, state = cached.rank.gpu.value, layers.operation, layers.block.kv
    is_index = operation.region is Region.SEQUENCE
    if is_index:
        each = index_row_bytes(operation.key_dim)
    elif state is not None and state.kind is KvKind.COMPRESSED:
        each = row_bytes(operation.key_dim)
    else:
        each = (
            0
            if state is None
            else layer_bytes_per_token(state, cached.cache, tensor_parallel=cached.rank.tensor_parallel)
        )
    heads = operation.heads / (1 if is_index else cached.rank.tensor_parallel)
    flops = 2.0 * heads * (operation.key_dim + operation.value_dim)
    position = (
        max(each / gpu.memory_bytes_per_second, flops / operations_per_second(gpu, SIXTEEN_BITS)) / UNMEASURED_SHARE
    )
    return np.asarray(KERNEL_SECONDS + SIZES * layers.positions(context_tokens) * position)


@lru_cache(maxsize=MOST_KEPT)
def prompt_seconds(cached: CachedRank, tokens: int, batch_tokens: int) -> float:
    """Return the seconds of all layers' attention of one prompt, computed with others in batches of so many tokens."""
    together = max(1.0, batch_tokens / tokens)
    seconds = (
        layers.repeats * _prompt_layer_seconds(layers, cached, together, tokens) for layers in _layers(cached.rank)
    )
    rows = min(float(batch_tokens), together * tokens)
    return sum(seconds) / together + tokens / rows * within_blocks_seconds(cached.rank, rows)


def _prompt_layer_seconds(layers: _Layers, cached: CachedRank, sequences: float, tokens: int) -> float:
    rank, operation = cached.rank, layers.operation
    if operation.kind is OperationKind.SCAN:
        return float(_scan_seconds(layers, rank, sequences, tokens, PROMPT))
    if layers.is_latent:
        kernel = latent_prompt_attention(rank.gpu.value, rank.operators_engine)
        if kernel is not None and operation.window is None:
            heads = operation.heads / rank.tensor_parallel
            attended = float(kernel.seconds(sequences, tokens, heads))
            return attended + float(_up_seconds(layers, rank, np.array(sequences * tokens)))
    if layers.is_measured and not layers.is_latent:
        found = prompt_attention(rank.gpu.value, rank.operators_engine, operation.key_dim, cached.cache_name)
        heads, key_heads = _heads(layers, rank)
        return float(found.seconds(sequences, tokens, heads, key_heads, window=operation.window))
    return sequences * _unmeasured_prompt_seconds(layers, rank, tokens)


def _unmeasured_prompt_seconds(layers: _Layers, rank: Rank, tokens: int) -> float:
    """Return a prompt's seconds in one layer by the card's published rate for 16 bits, an indexer's by that for 8."""
    operation, gpu = layers.operation, rank.gpu.value
    flops = tokens * operation.forward_flops_per_token((tokens + 1) / 2)
    if is_indexer(operation):
        return flops / operations_per_second(gpu, EIGHT_BITS) / INDEX_SHARE
    return flops / rank.tensor_parallel / operations_per_second(gpu, SIXTEEN_BITS) / UNMEASURED_SHARE


def _up_seconds(layers: _Layers, rank: Rank, rows: FloatArray) -> FloatArray:
    """Return the product with a latent's up-projection, in the model's own dtype; zero where it has none."""
    shape = _up_shape(layers)
    if shape is None:
        return np.zeros_like(rows)
    kernel = products(rank.gpu.value, rank.operators_engine, PLAIN)
    return kernel.seconds(rows, shape[1] / rank.tensor_parallel, shape[0])


def _up_shape(layers: _Layers) -> tuple[int, int] | None:
    return next((each.matmul_shape for each in layers.block.operations if each.name == LATENT_UP), None)


def _heads(layers: _Layers, rank: Rank) -> tuple[float, float]:
    """Return a rank's heads of queries and of keys, of which each rank has one at least."""
    state = layers.block.kv
    all_keys = state.heads if state is not None and state.heads else layers.operation.heads
    key_heads = math.ceil(all_keys / rank.tensor_parallel)
    return max(float(key_heads), layers.operation.heads / rank.tensor_parallel), float(key_heads)


def _scan_seconds(layers: _Layers, rank: Rank, sequences: FloatArray | float, tokens: int, phase: str) -> FloatArray:
    """Return a recurrence's seconds with its convolution; where none was measured, by what the state takes to move."""
    scan = layers.operation.scan
    heads = 1.0 if scan is None else scan.heads / rank.tensor_parallel
    kernel = None if scan is None else recurrence(rank.gpu.value, rank.operators_engine, scan.kernel.value, phase)
    if kernel is not None:
        return kernel.seconds(sequences, tokens, heads)
    return _unmeasured_scan_seconds(layers, scan, rank, sequences, tokens)


def _unmeasured_scan_seconds(
    layers: _Layers, scan: Scan | None, rank: Rank, sequences: FloatArray | float, tokens: int
) -> FloatArray:
    gpu = rank.gpu.value
    state = 0.0 if scan is None else scan.heads * scan.key_dim * scan.value_dim / rank.tensor_parallel
    flops = tokens * layers.operation.fixed_flops_per_token / rank.tensor_parallel
    each = max(2 * STATE_BYTES * state / gpu.memory_bytes_per_second, flops / operations_per_second(gpu, SIXTEEN_BITS))
    return np.asarray(KERNEL_SECONDS + np.asarray(sequences) * each / UNMEASURED_SHARE)


@lru_cache(maxsize=MOST_KEPT)
def attention_evidence(cached: CachedRank) -> tuple[tuple[Evidence, ...], bool]:
    """Return what attention's times rest on, and whether all of it was measured on some card."""
    kernels = [_token_kernel(layers, cached) for layers in _layers(cached.rank)]
    found = dict.fromkeys(kernel.evidence for kernel in kernels if kernel is not None)
    return tuple(found), None not in kernels


def _token_kernel(
    layers: _Layers, cached: CachedRank
) -> TokenAttention | LatentAttention | SparseBlock | Recurrence | None:
    """Return what prices one new token in some layers, None where the card's published rates do."""
    gpu, engine, operation = cached.rank.gpu.value, cached.rank.operators_engine, layers.operation
    if operation.kind is OperationKind.SCAN:
        scan = operation.scan
        return None if scan is None else recurrence(gpu, engine, scan.kernel.value, TOKEN)
    if layers.is_whole:
        return block_of(layers.block, cached.rank, cached.cache_name)
    if not layers.is_measured:
        return None
    if layers.is_latent:
        return latent_token_attention(gpu, engine, cached.cache_name)
    return token_attention(gpu, engine, operation.key_dim, cached.cache_name)
