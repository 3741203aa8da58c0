"""Layers that mix tokens through a state of fixed size: Mamba, Mamba-2, delta rules, lightning attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from plimsoll.planners.architecture.operation import (
    Operation,
    OperationKind,
    Region,
    Scan,
    Tensor,
    matmul,
    whole_matmul,
)
from plimsoll.planners.architecture.sequence_state import KvKind, KvState, RecurrentState

# Operations for each element of the state and token, in the recurrent form that generation computes: decay it (1),
# add the outer product of key and value (2) and contract it with the query (2). The chunked forms of training trade
# a few more operations for matrix units. Mamba-2, arXiv:2405.21060, equation 1; lightning attention, arXiv:2501.08313,
# section 2.2.
SCAN_FLOPS_PER_STATE_ELEMENT = 5.0
# A delta rule first reads what the state holds under the key (2), to subtract it from the value; decay, outer product
# and query as above. Gated delta rule, arXiv:2412.06464, equation 10; its decay for each channel, arXiv:2510.26692.
DELTA_FLOPS_PER_STATE_ELEMENT = 7.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """Features read from the layer's input: through one matrix, or, with a `rank`, down to it and up again."""

    name: str
    width: int
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What Mamba reads from its convolved channels: `width` features, the first `rank` of which are widened to a step
    for each channel; the others are the input's and the output's mixing (arXiv:2312.00752, section 3.2)."""

    width: int
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentMixer:
    """The sizes of one recurrent layer.

    Of the `projections`, the first holds the `convolution_channels` that pass a
    causal convolution over `kernel` tokens (no channels: no convolution); the
    state has `memory_elements`; `inner_width` features go into the output
    projection, after a gated norm where `has_output_norm`; `scan` is how it is trained.
    """

    hidden_size: int
    projections: tuple[Projection, ...]
    convolution_channels: int
    kernel: int
    memory_elements: int
    inner_width: int
    selection: Selection | None = None
    has_output_norm: bool = False
    flops_per_state_element: float = SCAN_FLOPS_PER_STATE_ELEMENT
    scan: Scan | None = None

    def kv_state(self) -> KvState:
        """Return the state that one such layer carries for each sequence."""
        return KvState(
            kind=KvKind.RECURRENT,
            recurrent=RecurrentState(
                convolution_elements=(self.kernel - 1) * self.convolution_channels,
                memory_elements=self.memory_elements,
            ),
        )


def recurrent_tensors(size: RecurrentMixer) -> tuple[Tensor, ...]:
    """Return the activations between the layer's norm and its output."""
    tensors = [Tensor(name="attention_input", width=size.hidden_size)]
    for projection in size.projections:
        if projection.rank is not None:
            tensors.append(Tensor(name=f"{projection.name}_latent", width=projection.rank))
        tensors.append(Tensor(name=projection.name, width=projection.width, region=Region.TENSOR))
    if size.convolution_channels:
        tensors.append(Tensor(name="convolved", width=size.convolution_channels, region=Region.TENSOR))
    if size.selection is not None:
        tensors.append(Tensor(name="selection", width=size.selection.width))
        tensors.append(Tensor(name="step", width=size.convolution_channels, region=Region.TENSOR))
    if size.has_output_norm:
        tensors.append(Tensor(name="recurrence", width=size.inner_width, region=Region.TENSOR))
    tensors.append(Tensor(name="attention_context", width=size.inner_width, region=Region.TENSOR))
    tensors.append(Tensor(name="attention_output", width=size.hidden_size))
    return tuple(tensors)


def recurrent_operations(size: RecurrentMixer) -> tuple[Operation, ...]:
    """Return projections, convolution, scan, norm and output projection."""
    return (
        *(operation for projection in size.projections for operation in _projection(projection, size.hidden_size)),
        *_convolution(size),
        *_selection(size),
        *_scan(size),
        matmul(
            "output_projection",
            "attention_context",
            "attention_output",
            (size.inner_width, size.hidden_size),
            is_row_parallel=True,
        ),
    )


def _projection(projection: Projection, hidden_size: int) -> Iterator[Operation]:
    name, source, inputs = projection.name, "attention_input", hidden_size
    if projection.rank is not None:
        source, inputs = f"{name}_latent", projection.rank
        yield whole_matmul(f"{name}_down", "attention_input", source, (hidden_size, projection.rank))
    yield matmul(f"{name}_projection", source, name, (inputs, projection.width))


def _convolution(size: RecurrentMixer) -> Iterator[Operation]:
    if size.convolution_channels:
        yield Operation(
            name="convolution",
            kind=OperationKind.CONVOLUTION,
            inputs=(size.projections[0].name,),
            output="convolved",
            fixed_flops_per_token=2.0 * size.kernel * size.convolution_channels,
        )


def _selection(size: RecurrentMixer) -> Iterator[Operation]:
    if size.selection is None:
        return
    channels = size.convolution_channels
    yield matmul(
        "selection_projection", "convolved", "selection", (channels, size.selection.width), is_row_parallel=True
    )
    yield matmul("step_projection", "selection", "step", (size.selection.rank, channels))


def _scan(size: RecurrentMixer) -> Iterator[Operation]:
    projected = tuple(projection.name for projection in size.projections)
    convolved = ("convolved",) if size.convolution_channels else ()
    selected = ("selection", "step") if size.selection is not None else ()
    yield Operation(
        name="scan",
        kind=OperationKind.SCAN,
        inputs=(*convolved, *selected, *projected),
        output="recurrence" if size.has_output_norm else "attention_context",
        fixed_flops_per_token=size.flops_per_state_element * size.memory_elements,
        scan=size.scan,
    )
    if size.has_output_norm:
        yield Operation(
            name="output_norm",
            kind=OperationKind.NORM,
            inputs=("recurrence", *projected),
            output="attention_context",
        )
