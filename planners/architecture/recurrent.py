"""Layers that mix tokens through a state of fixed size: Mamba, Mamba-2, gated delta rules."""

from __future__ import annotations

from dataclasses import dataclass

from planners.architecture.operation import Operation, OperationKind, Region, Tensor
from planners.architecture.sequence_state import KvKind, KvState, RecurrentState

# Operations for each element of the state and token: decay it, add the outer
# product of key and value (a multiply and an add), and contract it with the
# query (a multiply and an add).
SCAN_FLOPS_PER_STATE_ELEMENT = 5.0
# The delta rule first reads what the state holds under the key, to subtract it.
DELTA_FLOPS_PER_STATE_ELEMENT = 7.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentMixer:
    """The sizes of one recurrent layer.

    `projected_width` features come out of the input projections, of which
    `convolution_channels` pass a causal convolution over `kernel` tokens; the
    state has `memory_elements`; `inner_width` features go into the output projection.
    `inner_matmuls` are further projections, (input, output) features each, between
    the convolution and the scan.
    """

    hidden_size: int
    projected_width: int
    convolution_channels: int
    kernel: int
    memory_elements: int
    inner_width: int
    inner_matmuls: tuple[tuple[int, int], ...] = ()
    flops_per_state_element: float = SCAN_FLOPS_PER_STATE_ELEMENT

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
    return (
        Tensor(name="attention_input", width=size.hidden_size),
        Tensor(name="projected", width=size.projected_width, region=Region.TENSOR),
        Tensor(name="convolved", width=size.convolution_channels, region=Region.TENSOR),
        *(
            (Tensor(name="scan_parameters", width=sum(out for _, out in size.inner_matmuls)),)
            if size.inner_matmuls
            else ()
        ),
        Tensor(name="attention_context", width=size.inner_width, region=Region.TENSOR),
        Tensor(name="attention_output", width=size.hidden_size),
    )


def recurrent_operations(size: RecurrentMixer) -> tuple[Operation, ...]:
    """Return projection, convolution, scan and output projection."""
    inner = tuple(
        Operation(
            name=f"inner_projection_{index}",
            kind=OperationKind.MATMUL,
            inputs=("convolved",),
            output="scan_parameters",
            matmul_shape=shape,
        )
        for index, shape in enumerate(size.inner_matmuls)
    )
    return (
        Operation(
            name="input_projection",
            kind=OperationKind.MATMUL,
            inputs=("attention_input",),
            output="projected",
            matmul_shape=(size.hidden_size, size.projected_width),
        ),
        Operation(
            name="convolution",
            kind=OperationKind.CONVOLUTION,
            inputs=("projected",),
            output="convolved",
            fixed_flops_per_token=2.0 * size.kernel * size.convolution_channels,
        ),
        *inner,
        Operation(
            name="scan",
            kind=OperationKind.SCAN,
            inputs=("convolved", "projected"),
            output="attention_context",
            fixed_flops_per_token=size.flops_per_state_element * size.memory_elements,
        ),
        Operation(
            name="output_projection",
            kind=OperationKind.MATMUL,
            inputs=("attention_context",),
            output="attention_output",
            matmul_shape=(size.inner_width, size.hidden_size),
            is_row_parallel=True,
        ),
    )
