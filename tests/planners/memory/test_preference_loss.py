"""TRL's loss of preference pairs, worked out by hand."""

import numpy as np
import pytest

from plimsoll.planners.memory.preference_loss import compares, preference_loss, scored_tokens, tile_bytes
from plimsoll.planners.questions import Companion, Lora
from tests.planners.factories import small_llama
from tests.planners.training_cases import asked

# 31 tokens of 32 are scored, of 64 features and 1,000 entries.
SCORED, HIDDEN, ENTRIES = 31, 64, 1000
STREAM, HEAD, TILE = SCORED * HIDDEN, ENTRIES * HIDDEN, 2 * SCORED * 32_768
KEPT, SUMS = 41, 45


def question(*companions, sequence_length=32, **changes):
    return asked(
        "accelerate",
        model=small_llama(),
        gpus=2,
        sequence_length=sequence_length,
        global_batch_size=2,
        layout={"data_parallel": 2, "zero_stage": 3},
        companions=companions or (Companion(role="reference"),),
        **changes,
    )


def loss(*, casts=False, **changes):
    wanted = question(**changes)
    return preference_loss(wanted.layouts, wanted.job, np.bool_(casts))


def test_a_reference_is_compared_with_and_no_other_companion():
    assert compares(question().job)
    assert not compares(question(Companion(role="reward")).job)


def test_forwards_there_is_a_tile_and_what_it_was_made_of():
    assert loss().forward.max() == SCORED * (KEPT + SUMS) + 2 * STREAM + TILE


def test_backwards_gradients_are_fp32_and_then_cast():
    assert loss().backward.max() == SCORED * KEPT + (4 + 2) * (STREAM + HEAD) + TILE


def test_autocast_casts_head_and_hidden_states_and_no_gradient():
    cast = loss(casts=True)
    assert cast.backward.max() == SCORED * KEPT + 4 * (STREAM + HEAD) + TILE + 2 * (HEAD + STREAM)
    assert cast.gradient.max() == 2 * 4 * STREAM


def test_a_frozen_head_has_no_gradient_and_its_input_is_kept():
    frozen = loss(method="lora", lora=Lora(rank=4))
    assert frozen.kept.max() == SCORED * KEPT + 2 * STREAM
    assert frozen.backward.max() == frozen.kept.max() + (4 + 2) * STREAM + TILE


@pytest.mark.parametrize(("length", "rows"), [(4096, 4095), (4097, 4096), (8192, 4096)])
def test_a_tile_has_at_most_4096_tokens(length, rows):
    wanted = question(sequence_length=length)
    assert scored_tokens(wanted.layouts, wanted.job).max() == length - 1
    assert tile_bytes(wanted.layouts, wanted.job, 2).max() == 2 * 32_768 * rows
