import pytest

from planners.advice import advice_for
from planners.errors import InvalidQuestion, PlanningStopped
from planners.questions import Recompute
from planners.training import plan_training
from tests.planners.factories import question


def changes(asked) -> list[str]:
    return [next(iter(advice.change)) for advice in plan_training(asked).advice]


def test_advice_comes_in_practitioners_order():
    asked = question(
        framework="accelerate",
        gpus=8,
        micro_batch_size=8,
        attention="eager",
        recompute=Recompute(mode="none"),
        global_batch_size=64,
    )
    offered = changes(asked)
    order = [
        "training.attention",
        "training.micro_batch_size",
        "training.recompute",
        "layout",
        "framework",
        "hardware.gpus",
        "training.sequence_length",
        "training.method",
    ]
    assert offered
    assert [order.index(change) for change in offered] == sorted(order.index(change) for change in offered)


def test_the_fewest_gpus_that_fit_are_advised_by_number():
    answer = plan_training(question(framework="fsdp2", gpus=1))
    advised = next(advice for advice in answer.advice if "hardware.gpus" in advice.change)
    assert advised.change["hardware.gpus"] in (2, 3)
    assert plan_training(question(framework="fsdp2", gpus=advised.change["hardware.gpus"])).fits


def test_the_longest_shorter_sequence_is_advised_once():
    asked = question(framework="fsdp2", gpus=8, sequence_length=524_288, layout={"context_parallel": 1})
    offered = [change for change in changes(asked) if change == "training.sequence_length"]
    assert len(offered) <= 1


def test_a_change_that_cannot_be_planned_is_left_out():
    def refuse(asked):
        raise InvalidQuestion("never", pointer="/x")

    assert advice_for(question(gpus=1), refuse) == ()


def test_a_change_that_does_not_fit_is_left_out():
    asked = question(gpus=1)
    unfit = plan_training(asked)
    assert not unfit.fits
    assert advice_for(asked, lambda changed: unfit) == ()


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_wide_precisions_are_advised_to_mix(precision: str):
    seen = []

    def record(asked):
        seen.append(asked.precision)
        return plan_training(question())

    offered = advice_for(question(gpus=1, precision=precision), record)
    assert offered[0].change == {"training.precision": "bf16-mixed"}
    assert seen[0] == "bf16-mixed"


def test_no_change_is_tried_once_nobody_waits():
    def stopped(_question):
        raise PlanningStopped

    with pytest.raises(PlanningStopped):
        advice_for(question(framework="fsdp2", gpus=1), stopped)
