"""transformers' own evaluation loop between traced steps."""

import pytest

from plimsoll.planners.questions import Evaluation
from plimsoll.service.worker.recording.tracker import EVALUATION
from plimsoll.service.worker.stacks.accelerate.evaluation import traced_batches
from tests.service.worker.cases import traced

# Two sequences of 32 tokens on each of four ranks.
LOGITS, RANKS = 2 * 32 * 101, 4


def evaluated(batches, *, keeps_logits=True, **changes):
    wanted = Evaluation(batch_size=2, samples=batches * 2 * RANKS, keeps_logits=keeps_logits)
    return traced(evaluation=wanted, **changes)


def made(ledger, size):
    """Return how often a tensor of that size is made in the last step's evaluation."""
    mark, start, end = list(ledger.phase_ranges())[-1]
    assert mark.phase == EVALUATION
    events = ledger.events[start:end]
    return sum(not event.is_release and event.piece.requested_bytes == size for event in events)


@pytest.mark.parametrize(("kept", "steps", "batches"), [(False, None, 2), (True, None, 5), (True, 3, 3), (True, 9, 5)])
def test_as_many_batches_are_traced_as_stand_at_once(kept, steps, batches):
    wanted = Evaluation(batch_size=2, samples=5 * 2 * RANKS, keeps_logits=kept, accumulation_steps=steps)
    assert traced_batches(wanted, RANKS) == batches


@pytest.mark.parametrize(("zero_stage", "width"), [(0, 4), (3, 2)])
def test_logits_are_gathered_and_joined_to_those_before(zero_stage, width):
    ledger = evaluated(3, zero_stage=zero_stage)
    assert made(ledger, 3 * width * RANKS * LOGITS) == 1


def test_an_evaluation_follows_each_step_and_leaves_no_logits():
    ledger = evaluated(2)
    phases = [mark.phase for mark in ledger.marks if mark.step == 1]
    assert phases == ["forward", "backward", "optimizer", "evaluation"]
    assert {mark.step for mark in ledger.marks} == {0, 1}


def test_without_metrics_no_logits_are_gathered():
    assert made(evaluated(2, keeps_logits=False), 2 * RANKS * LOGITS) == 0


@pytest.mark.parametrize("changes", [{"method": "lora"}, {"data_parallel": 1, "zero_stage": 0}, {"recompute": "full"}])
def test_adapters_one_rank_and_recomputation_are_evaluated_too(changes):
    assert evaluated(2, **changes).peak().allocated_bytes
