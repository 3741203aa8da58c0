"""What a layer computes: operations that read and write named tensors.

An operation says what is multiplied and which tensors it reads. What a stack
keeps of them for the backward pass follows from the operation's kind and the
stack's kernels (`planners/memory/activations.py`), and because a tensor has a
name it is counted once, however many operations keep it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Region(StrEnum):
    """Which parallelism divides an activation within a layer.

    `sequence` tensors stand whole on every tensor-parallel rank unless sequence
    parallelism divides them by token; `tensor` ones are always divided by
    feature (Korthikanti et al. 2022, arXiv:2205.05198).
    """

    SEQUENCE = "sequence"
    TENSOR = "tensor"


class OperationKind(StrEnum):
    """The kinds of work that cost differently or keep different tensors."""

    EMBEDDING = "embedding"
    NORM = "norm"
    MATMUL = "matmul"
    ROTARY = "rotary"
    ATTENTION = "attention"
    ACTIVATION = "activation"
    GATED_ACTIVATION = "gated_activation"
    ADD = "add"
    ROUTING = "routing"
    CONVOLUTION = "convolution"
    SCAN = "scan"
    LOSS = "loss"


class ScanKernel(StrEnum):
    """The training kernels of recurrent layers, which differ in what they keep and how they compute.

    `selective` is mamba_ssm's mamba_inner_fn, convolution to output projection in one;
    `selective_apart` its selective_scan_fn with the layer's own products around it;
    `state_space` mamba_split_conv1d_scan_combined; `gated_delta` and `channel_delta`
    flash-linear-attention's chunk_gated_delta_rule and chunk_kda.
    """

    SELECTIVE = "selective"
    SELECTIVE_APART = "selective_apart"
    STATE_SPACE = "state_space"
    GATED_DELTA = "gated_delta"
    CHANNEL_DELTA = "channel_delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """A recurrence over tokens: each of `heads` has a state of `key_dim` x `value_dim` elements.

    Of Mamba a head is a channel and of every state space model the keys are B and
    the queries C, of which each group of heads has its own, as of a gated delta rule.
    `chunk_tokens` are those of a chunk where a configuration says so, as Mamba-2's do; 0 where the kernel does.
    """

    kernel: ScanKernel
    heads: int
    key_dim: int
    value_dim: int
    groups: int = 1
    chunk_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """An activation: `width` elements for each token of the micro-batch."""

    name: str
    width: int
    region: Region = Region.SEQUENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of a block, applied to every token.

    `matmul_shape` is (input features, output features), done `copies` times for
    each token (once for each expert that works on it). Attention costs
    2·heads·(key_dim + value_dim) operations for each token and each position it
    attends to: a dot product with the key and a weighted sum of the value. It
    looks back over `window` positions at most, or, when `is_chunked`, to the
    beginning of its chunk of `window` positions. A position may stand for
    `tokens_per_position` tokens (DeepSeek-V4).
    A norm with `heads` works on each head's features by itself; with `scales_in_fp32` the family's own code multiplies
    by the scale before it casts back (Gemma, OLMo 2), and not after. A rotation with `concatenates` joins rotated and
    passed features in a new tensor, whose order of heads and tokens the attention's output takes on.
    One that `is_centred` subtracts the mean too, in operations of its own, and one without `has_scale` is torch's
    kernel of an input in fp32 without weights. Of an activation transformers' own code keeps `kept_tensors` of its
    input's width (0: its result alone), and `meeting_gradients` of that width are live at once as it is differentiated.
    An addition `is_scaled` that scales what it adds, whose gradient is then a tensor beside the stream's; one that
    `drops_out` keeps a mask of what it adds, of one byte an
    element, and so does an attention that drops scores out, which is eager; one that `caps_scores` has a hyperbolic
    tangent before its softmax, and one that `has_sinks` a logit of each head that stands for no token. A router
    `in_fp32` casts its input up, and tokens that are combined so are weighed by fp32 scores
    (planners/families/reading/own_code.py).
    `fixed_flops_per_token` is the cost of work that no matrix shape tells: a
    recurrent scan or a short convolution. `scan` says which kernel trains a recurrence, None that no source tells
    what one keeps.
    """

    name: str
    kind: OperationKind
    inputs: tuple[str, ...]
    output: str
    region: Region = Region.TENSOR
    matmul_shape: tuple[int, int] | None = None
    copies: int = 1
    heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    window: int | None = None
    tokens_per_position: int = 1
    is_chunked: bool = False
    is_bidirectional: bool = False
    fixed_flops_per_token: float = 0.0
    is_row_parallel: bool = False
    scales_in_fp32: bool = False
    is_centred: bool = False
    has_scale: bool = True
    kept_tensors: int = 1
    meeting_gradients: int = 2
    drops_out: bool = False
    is_scaled: bool = False
    concatenates: bool = False
    caps_scores: bool = False
    has_sinks: bool = False
    softmax_in_fp32: bool = True
    in_fp32: bool = False
    scan: Scan | None = None

    def forward_flops_per_token(self, context_tokens: float) -> float:
        """Return the multiply and add operations one token costs.

        `context_tokens` is how many positions the token attends to on average:
        (sequence + 1) / 2 under a causal mask.
        """
        if self.matmul_shape is not None:
            return 2.0 * self.matmul_shape[0] * self.matmul_shape[1] * self.copies
        if self.kind is OperationKind.ATTENTION:
            return 2.0 * self.heads * (self.key_dim + self.value_dim) * self._attended(context_tokens)
        return self.fixed_flops_per_token

    def _attended(self, context_tokens: float) -> float:
        if self.is_bidirectional:
            # Under a causal mask a token attends to (sequence + 1) / 2 positions on average; here to all of them.
            return 2 * context_tokens - 1
        positions = context_tokens / self.tokens_per_position
        if self.window is None:
            return positions
        # The sequence that has this mean: its last token sees all of it.
        sequence = 2 * positions - 1
        if sequence <= self.window:
            return positions
        if self.is_chunked:
            return mean_of_chunks(sequence, self.window)
        return mean_of_window(sequence, self.window)


def mean_of_window(sequence: float, window: int) -> float:
    """Return how many positions a token sees on average of the last `window`, itself counted, of a longer sequence.

    The first `window` tokens see 1, 2, … `window` of them, all others `window`:
    (w(w+1)/2 + (s-w)w) / s = w - w(w-1)/(2s).
    """
    return window - window * (window - 1) / (2 * sequence)


def mean_of_chunks(sequence: float, chunk: int) -> float:
    """Return how many positions a token sees on average of its own chunk up to itself; the last one may be short."""
    whole, rest = divmod(sequence, chunk)
    return (whole * chunk * (chunk + 1) + rest * (rest + 1)) / (2 * sequence)


def matmul(
    name: str,
    source: str,
    output: str,
    shape: tuple[int, int],
    *,
    region: Region = Region.TENSOR,
    is_row_parallel: bool = False,
    copies: int = 1,
) -> Operation:
    """Return a product with a matrix of so many input and output features."""
    return Operation(
        name=name,
        kind=OperationKind.MATMUL,
        inputs=(source,),
        output=output,
        region=region,
        matmul_shape=shape,
        is_row_parallel=is_row_parallel,
        copies=copies,
    )


def whole_matmul(name: str, source: str, output: str, shape: tuple[int, int]) -> Operation:
    """Return a product with a matrix that stands whole on every rank, which works on the tokens that the rank has."""
    return matmul(name, source, output, shape, region=Region.SEQUENCE)


def norm(name: str, source: str, output: str) -> Operation:
    """Return a norm of whole tokens."""
    return Operation(name=name, kind=OperationKind.NORM, inputs=(source,), output=output, region=Region.SEQUENCE)


def add(name: str, left: str, right: str, output: str) -> Operation:
    """Return an addition to the residual stream."""
    return Operation(name=name, kind=OperationKind.ADD, inputs=(left, right), output=output, region=Region.SEQUENCE)
