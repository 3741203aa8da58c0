"""Laws of the training planner's answers: what was found is answered, whatever else fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

import pytest

from planners.derived import UNEXPECTED, Derived
from planners.plans import Omitted
from planners.questions import LayoutRequest, NamedLayout, Resilience, TrainingQuestion
from planners.training import plan_training
from service.artifacts.training import training_artifacts
from tests.planners.factories import question, small_llama, small_mixtral
from tests.service.artifacts.training.launches import launch

T = TypeVar("T")


class Failing(Derived):
    """Fails at the part of one name, and notes the names of all that it was asked for."""

    def __init__(self, fails_at: str = "") -> None:
        super().__init__()
        self.fails_at = fails_at
        self.names: set[str] = set()

    def part(self, name: str, work: Callable[[], T], *, otherwise: T) -> T:
        self.names.add(name)
        return super().part(name, _fail if name == self.fails_at else work, otherwise=otherwise)


def _fail() -> NoReturn:
    raise LookupError("failed on purpose")


def asked(**changes: object) -> TrainingQuestion:
    """A question whose answer has every part: it fits nowhere near, names a layout, and asks for spare nodes."""
    return question(
        compare=(NamedLayout(layout=LayoutRequest(tensor_parallel=2)),),
        resilience=Resilience(target_availability=0.9, repair_seconds=3600.0),
        **{"model": small_mixtral(), "sequence_length": 512, **changes},
    )


TIGHT = {"model": small_llama(num_hidden_layers=64, hidden_size=8192, intermediate_size=28672), "gpus": 1}


def parts() -> list[tuple[str, dict[str, object]]]:
    """Return the name of every part of an answer, and a question whose answer has it."""
    found: dict[str, dict[str, object]] = {}
    for changes in ({}, TIGHT):
        derived = Failing()
        plan_training(asked(**changes), derived=derived)
        found.update(dict.fromkeys(sorted(derived.names - set(found)), changes))
    return list(found.items())


PARTS = parts()


def test_an_answer_has_every_derived_part():
    assert {name for name, _ in PARTS} == {
        "advice",
        "alternatives",
        "assumptions",
        "comparisons",
        "plan.communication",
        "plan.memory.spikes",
        "plan.memory.stages.moments",
        "plan.run.elastic_gpus",
        "plan.run.goodput",
        "plan.run.recovery",
        "plan.run.spare_nodes",
        "plan.sharding.stages",
        "plan.sharding.weights",
        "summary",
    }


@pytest.mark.parametrize(("name", "changes"), PARTS, ids=[name for name, _ in PARTS])
def test_nothing_worked_out_about_a_plan_can_refuse_it(name: str, changes: dict[str, object]):
    whole = plan_training(asked(**changes))
    lacking = plan_training(asked(**changes), derived=Failing(fails_at=name))
    assert set(lacking.omitted) == {Omitted(part=name, reason=UNEXPECTED)}
    assert (lacking.verdict, lacking.plan.layout) == (whole.verdict, whole.plan.layout)
    assert lacking.plan.memory.peak_bytes == whole.plan.memory.peak_bytes
    assert lacking.plan.step == whole.plan.step
    assert whole.omitted == ()


def test_a_launch_file_that_cannot_be_written_leaves_the_others():
    given = launch("fsdp2", data_parallel=8)
    whole = training_artifacts(given)
    lacking = training_artifacts(given, Failing(fails_at="artifacts.torchrun"))
    assert lacking.omitted == (Omitted(part="artifacts.torchrun", reason=UNEXPECTED),)
    assert dict(lacking.files) == {name: file for name, file in whole.files.items() if name != "torchrun"}
