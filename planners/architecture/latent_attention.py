"""Multi-head latent attention: keys and values are rebuilt from a narrow latent vector."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.planners.architecture.attention import column, row
from plimsoll.planners.architecture.operation import Operation, OperationKind, Region, Tensor, matmul, whole_matmul
from plimsoll.planners.architecture.sequence_state import KvKind, KvState
from plimsoll.planners.architecture.weight import Part, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """The sizes of one layer of latent attention.

    Queries go through a latent of `query_rank` features (None: straight from the
    hidden state), keys and values through one of `key_value_rank`; each head has
    `nope_dim` features without position, `rope_dim` with (shared by all heads in
    the key) and `value_dim` of value. Where attention is sparse, a token attends to
    `chosen_tokens` positions at most.

    Without `has_rotary` the shared features carry no position either (Kimi Linear).

    Source: DeepSeek-V2, arXiv:2405.04434, section 2.1 and appendix C.
    """

    hidden_size: int
    heads: int
    query_rank: int | None
    key_value_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    has_rotary: bool = True
    chosen_tokens: int | None = None

    @property
    def key_value_heads(self) -> int:
        """Return the heads that keys and values are rebuilt for: each query's."""
        return self.heads

    @property
    def key_dim(self) -> int:
        """Return the features of one head's query and key."""
        return self.nope_dim + self.rope_dim

    def kv_state(self, *, index_width: int = 0) -> KvState:
        """Return what one such layer caches: the latent and the shared rotary key."""
        return KvState(
            kind=KvKind.LATENT,
            latent_width=self.key_value_rank + self.rope_dim,
            index_width=index_width,
        )


def latent_weights(prefix: str, size: LatentAttention, *, bias: bool = False) -> tuple[Weight, ...]:
    """Return the projections and norms as DeepSeek checkpoints name them.

    The down projections and their norms stand whole on every rank; the up
    projections are divided by head.
    """
    heads = size.heads
    query: tuple[Weight, ...]
    if size.query_rank is None:
        query = (column(f"{prefix}.q_proj.weight", (heads * size.key_dim, size.hidden_size), heads, is_linear=True),)
    else:
        query = (
            *_whole(f"{prefix}.q_a_proj", (size.query_rank, size.hidden_size), bias=bias),
            Weight(name=f"{prefix}.q_a_layernorm.weight", shape=(size.query_rank,), part=Part.NORM),
            column(f"{prefix}.q_b_proj.weight", (heads * size.key_dim, size.query_rank), heads, is_linear=True),
        )
    latent_width = size.key_value_rank + size.rope_dim
    return (
        *query,
        *_whole(f"{prefix}.kv_a_proj_with_mqa", (latent_width, size.hidden_size), bias=bias),
        Weight(name=f"{prefix}.kv_a_layernorm.weight", shape=(size.key_value_rank,), part=Part.NORM),
        column(
            f"{prefix}.kv_b_proj.weight",
            (heads * (size.nope_dim + size.value_dim), size.key_value_rank),
            heads,
            is_linear=True,
        ),
        row(f"{prefix}.o_proj.weight", (size.hidden_size, heads * size.value_dim), heads),
        *((Weight(name=f"{prefix}.o_proj.bias", shape=(size.hidden_size,), part=Part.ATTENTION),) if bias else ()),
    )


def latent_tensors(size: LatentAttention) -> tuple[Tensor, ...]:
    """Return the activations of the training form, in which keys and values are written out in full."""
    query_latent = () if size.query_rank is None else (Tensor(name="query_latent", width=size.query_rank),)
    return (
        Tensor(name="attention_input", width=size.hidden_size),
        *query_latent,
        Tensor(name="key_value_latent", width=size.key_value_rank + size.rope_dim),
        Tensor(name="query", width=size.heads * size.key_dim, region=Region.TENSOR),
        Tensor(name="key", width=size.heads * size.key_dim, region=Region.TENSOR),
        Tensor(name="value", width=size.heads * size.value_dim, region=Region.TENSOR),
        Tensor(name="attention_context", width=size.heads * size.value_dim, region=Region.TENSOR),
        Tensor(name="attention_output", width=size.hidden_size),
    )


def latent_operations(size: LatentAttention) -> tuple[Operation, ...]:
    """Return the projections, attention over full heads and the output projection."""
    key_value_out = size.heads * (size.nope_dim + size.value_dim)
    return (
        *_query_operations(size),
        whole_matmul(
            "key_value_down", "attention_input", "key_value_latent",
            (size.hidden_size, size.key_value_rank + size.rope_dim),
        ),
        matmul("key_value_up", "key_value_latent", "key", (size.key_value_rank, key_value_out)),
        *(
            (Operation(name="rotary", kind=OperationKind.ROTARY, inputs=("query", "key"), output="query"),)
            if size.has_rotary
            else ()
        ),
        Operation(
            name="attention",
            kind=OperationKind.ATTENTION,
            inputs=("query", "key", "value"),
            output="attention_context",
            heads=size.heads,
            key_dim=size.key_dim,
            value_dim=size.value_dim,
            window=size.chosen_tokens,
        ),
        matmul(
            "output_projection", "attention_context", "attention_output",
            (size.heads * size.value_dim, size.hidden_size), is_row_parallel=True,
        ),
    )  # fmt: skip


def _query_operations(size: LatentAttention) -> tuple[Operation, ...]:
    width = size.heads * size.key_dim
    if size.query_rank is None:
        return (matmul("query_projection", "attention_input", "query", (size.hidden_size, width)),)
    return (
        whole_matmul("query_down", "attention_input", "query_latent", (size.hidden_size, size.query_rank)),
        matmul("query_up", "query_latent", "query", (size.query_rank, width)),
    )


def _whole(name: str, shape: tuple[int, int], *, bias: bool) -> tuple[Weight, ...]:
    matrix = Weight(name=f"{name}.weight", shape=shape, part=Part.ATTENTION, is_linear=True)
    if not bias:
        return (matrix,)
    return (matrix, Weight(name=f"{name}.bias", shape=(shape[0],), part=Part.ATTENTION))
