"""Forward passes of models beside the policy, in its step."""

import pytest

from plimsoll.planners.memory.programs.beside_policy import beside_policy
from plimsoll.planners.memory.programs.sharded_stage import sharded_stage
from plimsoll.planners.memory.steps.step import BACKWARD, COMPANION_FORWARD, FORWARD
from plimsoll.planners.questions import Companion
from tests.planners.factories import small_llama
from tests.planners.training_cases import asked, events

# Four layers of 36,992 parameters, twice 1,000 x 64 and a norm of 64; a feed-forward of 128.
PARAMETERS = 4 * 36_992 + 128_064
TOKENS, HIDDEN, WIDEST = 32, 64, 128
REFERENCE = Companion(role="reference")
VALUE = Companion(role="value", trainable=True)


def asking(zero_stage=0, framework="accelerate", **changes):
    return {
        "framework": framework,
        "model": small_llama(),
        "gpus": 2,
        "sequence_length": TOKENS,
        "global_batch_size": 2,
        "layout": {"data_parallel": 2, "zero_stage": zero_stage},
        **changes,
    }


def beside(*companions, **changes):
    return beside_policy(asked(**asking(companions=companions, **changes)))


def at_most(phase, *companions, **changes):
    return max(event.total for event in events(**asking(companions=companions, **changes)) if event.phase == phase)


def test_a_frozen_layer_holds_its_feed_forward_and_the_stream_four_times():
    (reference,) = beside(REFERENCE)
    assert reference.layer.max() == 2 * TOKENS * (3 * WIDEST + 4 * HIDDEN)


def test_a_reference_makes_logits_a_tile_at_a_time_and_a_reward_model_none():
    reference, reward = beside(REFERENCE, Companion(role="reward"))
    # 31 tokens are scored: a tile, the last hidden states and those scored in 16 bits, and 45 bytes a token.
    assert reference.loss.max() == 31 * (2 * 32_768 + 2 * 2 * HIDDEN + 45)
    assert reward.loss.max() == 0


@pytest.mark.parametrize(("zero_stage", "gathered"), [(0, 0), (3, 2 * 2 * PARAMETERS)])
def test_fsdp2_gathers_all_of_a_reference_into_one_buffer_and_out_of_it(zero_stage, gathered):
    assert beside(REFERENCE, zero_stage=zero_stage)[0].gathered.max() == gathered


def test_a_reference_that_stays_whole_is_gathered_before_there_are_optimizer_states():
    # At stage 2 the whole weights stand with the parameters; the buffer is less than half the policy's two moments.
    (reference,) = beside(REFERENCE, zero_stage=2)
    assert reference.gathered.max() == 0


def test_deepspeed_gathers_a_reference_layer_by_layer():
    (reference,) = beside(REFERENCE, zero_stage=3, framework="deepspeed")
    assert reference.gathered.max() == 2 * (128_064 + 2 * 36_992)


def test_autocast_copies_a_reference_in_fp32():
    wide, narrow = (beside(Companion(role="reference", precision=name))[0].copies.max() for name in ("fp32", "bf16"))
    assert (wide, narrow) == (2 * PARAMETERS, 0)


@pytest.mark.parametrize("framework", ["accelerate", "deepspeed"])
@pytest.mark.parametrize("zero_stage", [0, 2, 3])
def test_it_runs_while_all_that_the_policy_keeps_stands(framework, zero_stage):
    happened = [event.phase for event in events(**asking(zero_stage, framework, companions=(REFERENCE,)))]
    assert happened.index(FORWARD) < happened.index(COMPANION_FORWARD) < happened.index(BACKWARD)
    held = asked(**asking(zero_stage, framework, companions=(REFERENCE,)))
    assert at_most(COMPANION_FORWARD, REFERENCE, zero_stage=zero_stage, framework=framework) >= (
        (held.active.stage + held.active.head).max() + beside(REFERENCE, zero_stage=zero_stage)[0].loss.max()
    )


def test_the_highest_layer_is_gathered_before_pairs_are_differentiated():
    found = asked(**asking(3, companions=(REFERENCE,)))
    plain = asked(**asking(3))
    assert (sharded_stage(found).gathers_before_loss, sharded_stage(plain).gathers_before_loss) == (True, False)
    # Of 36,992 parameters, in 16 bits, beside the head's unit of 64,064 that stays gathered.
    began = next(event for event in events(**asking(3, companions=(REFERENCE,))) if event.phase == BACKWARD)
    assert began.change == 2 * 36_992


def test_one_backward_pass_begins_with_all_that_both_keep():
    active = asked(**asking(companions=(VALUE,))).active
    # Without recompute the top layer's working set is what it keeps.
    (value,) = beside(VALUE)
    assert value.layer.max() == (active.stage + active.head).max() + active.layers[0].backward.transient.max()


def test_without_companions_no_event_is_theirs():
    assert COMPANION_FORWARD not in {event.phase for event in events(**asking())}
