"""Experts as separate and as fused tensors, and what a token costs in them."""

from __future__ import annotations

import math

import pytest

from plimsoll.planners.architecture import OperationKind, Part
from plimsoll.planners.architecture.mixture_of_experts import (
    FusedExperts,
    MixtureOfExperts,
    expert_weights,
    fused_expert_weights,
    mixture_operations,
    mixture_tensors,
    shared_expert_weights,
)

SIZE = MixtureOfExperts(hidden_size=64, intermediate_size=20, experts=8, experts_per_token=2)
SHARED = MixtureOfExperts(
    hidden_size=64,
    intermediate_size=20,
    experts=8,
    experts_per_token=2,
    shared_intermediate_size=36,
    has_shared_gate=True,
)


def test_separate_experts_have_a_tensor_each() -> None:
    weights = expert_weights("e.{expert}", SIZE, names=("w1", "w3", "w2"))
    assert [weight.shape for weight in weights] == [(20, 64), (20, 64), (64, 20)]
    assert {weight.tensors for weight in weights} == {8}
    # 3 x 64 x 20 an expert.
    assert sum(weight.elements for weight in weights) == 8 * 3840


@pytest.mark.parametrize(
    ("order", "shapes", "dims"),
    [
        (FusedExperts.OUTPUT_FIRST, [(8, 40, 64), (8, 64, 20)], [1, 2]),
        (FusedExperts.INPUT_FIRST, [(8, 64, 40), (8, 20, 64)], [2, 1]),
    ],
)
def test_fused_experts_are_one_tensor_split_along_their_inner_features(
    order: FusedExperts, shapes: list[tuple[int, ...]], dims: list[int]
) -> None:
    weights = fused_expert_weights(("gate_up", "down"), SIZE, order)
    assert [weight.shape for weight in weights] == shapes
    assert [weight.dim for weight in weights] == dims
    assert {weight.tensors for weight in weights} == {1}
    assert sum(weight.elements for weight in weights) == 8 * 3840
    # Halved over two ranks: every expert's inner features are.
    assert sum(math.prod(weight.local_shape(2)) for weight in weights) == 8 * 3840 // 2


def test_biases_of_fused_experts_are_split_where_they_are_outputs_of_a_column() -> None:
    first, second = fused_expert_weights(("g", "d"), SIZE, FusedExperts.INPUT_FIRST, bias_suffix="_bias")[2:]
    assert (first.name, first.shape, first.local_shape(2)) == ("g_bias", (8, 40), (8, 20))
    assert (second.name, second.shape, second.local_shape(2)) == ("d_bias", (8, 64), (8, 64))


def test_a_token_is_multiplied_by_its_own_experts_alone() -> None:
    # Router 2 x 64 x 8 = 1,024; two experts 2 x 2 x 3,840 = 15,360.
    flops = sum(op.forward_flops_per_token(0) for op in mixture_operations(SIZE))
    assert flops == 1024 + 15_360


def test_the_shared_expert_and_its_gate_work_on_every_token() -> None:
    # Shared expert 2 x 3 x 64 x 36 = 13,824, and the score that scales it 2 x 64 x 1 = 128.
    without = sum(op.forward_flops_per_token(0) for op in mixture_operations(SIZE))
    flops = sum(op.forward_flops_per_token(0) for op in mixture_operations(SHARED))
    assert flops - without == 13_824 + 128


def test_every_tensor_that_an_operation_names_is_described() -> None:
    named = {tensor.name for tensor in mixture_tensors(SHARED)}
    for operation in mixture_operations(SHARED):
        assert {*operation.inputs, operation.output} <= named
    routing = [op.name for op in mixture_operations(SHARED) if op.kind is OperationKind.ROUTING]
    assert routing == ["dispatch", "combine", "shared_combine"]


def test_without_shared_experts_there_are_no_shared_weights() -> None:
    assert shared_expert_weights("s", SIZE) == ()
    assert {weight.part for weight in shared_expert_weights("s", SHARED)} == {Part.SHARED_EXPERT}
