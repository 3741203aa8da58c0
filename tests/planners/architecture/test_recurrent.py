"""What a layer with a state of fixed size computes, keeps and remembers."""

from __future__ import annotations

import pytest

from plimsoll.planners.architecture import KvKind, OperationKind, Region
from plimsoll.planners.architecture.recurrent import (
    Projection,
    RecurrentMixer,
    Selection,
    recurrent_operations,
    recurrent_tensors,
)

# 8 hidden features; 12 convolved channels and 6 of a gate that passes a latent of 2; a state of 30 elements.
MIXER = RecurrentMixer(
    hidden_size=8,
    projections=(Projection(name="query_key_value", width=12), Projection(name="gate", width=6, rank=2)),
    convolution_channels=12,
    kernel=4,
    memory_elements=30,
    inner_width=6,
    has_output_norm=True,
    flops_per_state_element=7.0,
)
SELECTIVE = RecurrentMixer(
    hidden_size=8,
    projections=(Projection(name="projected", width=32),),
    convolution_channels=16,
    kernel=3,
    memory_elements=48,
    inner_width=16,
    selection=Selection(width=10, rank=4),
)
WITHOUT_CONVOLUTION = RecurrentMixer(
    hidden_size=8,
    projections=(Projection(name="query_key_value", width=12),),
    convolution_channels=0,
    kernel=1,
    memory_elements=16,
    inner_width=4,
)


def flops(mixer: RecurrentMixer) -> dict[str, float]:
    return {operation.name: operation.forward_flops_per_token(100.0) for operation in recurrent_operations(mixer)}


def test_a_token_costs_its_matrices_the_convolution_and_the_state() -> None:
    assert flops(MIXER) == {
        "query_key_value_projection": 192,  # 2 x 8 x 12
        "gate_down": 32,  # 2 x 8 x 2
        "gate_projection": 24,  # 2 x 2 x 6
        "convolution": 96,  # 2 x 4 x 12
        "scan": 210,  # 7 x 30
        "output_norm": 0,
        "output_projection": 96,  # 2 x 6 x 8
    }


def test_mamba_reads_its_mixing_and_its_step_from_the_convolved_channels() -> None:
    # 2 x 8 x 32, 2 x 3 x 16, 2 x 16 x 10, 2 x 4 x 16, 5 x 48 and 2 x 16 x 8.
    assert list(flops(SELECTIVE).values()) == [512, 96, 320, 128, 240, 256]


def test_without_channels_nothing_is_convolved_or_remembered_of_it() -> None:
    assert "convolution" not in flops(WITHOUT_CONVOLUTION)
    state = WITHOUT_CONVOLUTION.kv_state().recurrent
    assert state is not None
    assert (state.convolution_elements, state.memory_elements) == (0, 16)


def test_the_state_is_the_last_inputs_of_the_convolution_and_the_memory() -> None:
    state = MIXER.kv_state()
    assert state.kind is KvKind.RECURRENT
    assert state.recurrent is not None
    assert state.recurrent.convolution_elements == 36  # (4 - 1) x 12
    assert state.recurrent.memory_elements == 30
    assert state.elements_per_token == 0


@pytest.mark.parametrize("mixer", [MIXER, SELECTIVE, WITHOUT_CONVOLUTION])
def test_every_tensor_that_an_operation_reads_or_writes_is_listed_once(mixer: RecurrentMixer) -> None:
    names = [tensor.name for tensor in recurrent_tensors(mixer)]
    touched = {name for operation in recurrent_operations(mixer) for name in (*operation.inputs, operation.output)}
    assert len(names) == len(set(names))
    assert touched == set(names)


def test_latents_stand_whole_on_every_rank_and_features_are_divided() -> None:
    regions = {tensor.name: tensor.region for tensor in recurrent_tensors(MIXER)}
    assert regions["gate_latent"] is Region.SEQUENCE
    assert regions["gate"] is regions["convolved"] is regions["recurrence"] is Region.TENSOR


def test_what_sums_over_divided_channels_is_row_parallel() -> None:
    rows = [operation.name for operation in recurrent_operations(SELECTIVE) if operation.is_row_parallel]
    assert rows == ["selection_projection", "output_projection"]
    assert all(op.kind is OperationKind.MATMUL for op in recurrent_operations(SELECTIVE) if op.is_row_parallel)
