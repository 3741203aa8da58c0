"""What a layer holds as torchao casts a matrix, or what it multiplies, to fp8."""

import numpy as np
import pytest

from plimsoll.planners.layouts.candidates import FULL
from plimsoll.planners.memory.programs.stage_layers import stage_layers
from tests.planners.factories import small_llama
from tests.planners.training_cases import asked

TOKENS, HIDDEN, INNER = 32, 64, 128
SPLIT = {"tensor_parallel": 2, "sequence_parallel": True}


def layer(**layout):
    question = asked(
        "fsdp2",
        model=small_llama(),
        sequence_length=TOKENS,
        precision="fp8-mixed",
        layout={"data_parallel": 4, "shard_group": 4, "zero_stage": 3, **layout},
    )
    (run,) = stage_layers(question, gradient_bytes=np.full(1, 2.0)).runs
    return run.layers[1][0].bytes


def activations(of, name):
    return next(moment.activations.item() for moment in of.moments if moment.name == name)


def test_a_matrix_is_cast_through_fp32_beside_the_gradient_of_what_it_wrote():
    # The gradient in 16 bits and in fp8, and the matrix: scaled and clamped in fp32, and then in fp8.
    found = layer()
    assert activations(found, "last matrix cast") == found.kept + (2 + 1) * TOKENS * HIDDEN + 9 * HIDDEN * INNER


def test_the_last_input_is_cast_beside_three_casts_before_it():
    # The gradients of what the matrix read and wrote; in fp8 the matrix and twice the gradient, and the input itself.
    found = layer()
    casts = HIDDEN * INNER + 2 * TOKENS * HIDDEN + 9 * TOKENS * INNER
    assert activations(found, "its input cast") == found.kept + 2 * TOKENS * (INNER + HIDDEN) + casts


def test_over_tensor_parallel_ranks_the_input_is_there_in_fp8_and_the_gradient_is_gathered_so():
    found = layer(**SPLIT)
    assert activations(found, "its input cast") == 0
    gradient = 2 * TOKENS / 2 * HIDDEN + TOKENS * HIDDEN
    assert activations(found, "last matrix cast") == found.kept + gradient + 9 * HIDDEN * INNER / 2


def test_ranks_that_gather_in_fp8_keep_less():
    # Of both halves' inputs, whole, and the last matrix's one byte an element for two; of attention's output one more.
    plain = asked("fsdp2", model=small_llama(), sequence_length=TOKENS, layout={**SPLIT, "zero_stage": 3})
    (run,) = stage_layers(plain, gradient_bytes=np.full(1, 2.0)).runs
    saved = run.layers[1][0].bytes.kept - layer(**SPLIT).kept
    assert saved == TOKENS * (2 * HIDDEN + INNER / 2 - HIDDEN / 2)


@pytest.mark.parametrize("layout", [{}, SPLIT])
def test_a_second_run_casts_again(layout):
    assert activations(layer(**layout), "second run's matrix cast") == 0
    assert activations(layer(**layout, recompute=FULL), "second run's matrix cast") > layer(**layout).kept
