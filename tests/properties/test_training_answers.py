"""Laws of the training planner's answers.

What was found is answered, whatever else fails. What can be answered with a layout fixed can be answered with it open.
What is refused names what works. The figures of a sentence go together.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn, TypeVar

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.derived import UNEXPECTED, Derived
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import ImpossibleLayout, PlimsollError
from plimsoll.planners.ground.hardware import GpuCount
from plimsoll.planners.plans import Alternative, Omitted
from plimsoll.planners.questions import LayoutRequest, Lora, NamedLayout, Resilience, TrainingQuestion
from plimsoll.planners.stacks.profile import stack_names
from plimsoll.planners.training.planning import best_layout, plan_training, plan_without_advice
from plimsoll.service.artifacts.training import training_artifacts
from tests.planners.factories import question, small_llama, small_mixtral
from tests.properties.laws import law
from tests.service.stacks.launches import launch

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
        "plan.run.goodput_low",
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


GPU_COUNTS = (1, 2, 4, 8, 16, 24, 48, 64, 96, 256, 960, 1000, 1024, 4096, 16_384)
BATCHES = (1, 3, 5, 7, 24, 64, 96, 105, 192, 210, 384, 640, 1000, 1024, 1536, 1680, 1920, 3072, 15_360)
LENGTHS = (512, 1024, 2048, 4096)
STACKS_WITH_ADAPTERS = ("any", "accelerate", "litgpt", "reference", "torchtune")


@functools.cache
def described(name: str) -> ModelSpec:
    return describe_config(dict(catalogue().model(name).config), name=name)


def divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


@st.composite
def trainings(draw: st.DrawFn) -> TrainingQuestion:
    """Draw a job of any model, stack and method on any number of GPUs, with nothing of its layout fixed."""
    method = draw(st.sampled_from(("full", "full", "lora", "qlora")))
    stacks = ("any", *stack_names()) if method == "full" else STACKS_WITH_ADAPTERS
    return question(
        model=described(draw(st.sampled_from([entry.id for entry in catalogue().models]))),
        gpus=draw(st.sampled_from(GPU_COUNTS)),
        global_batch_size=draw(st.sampled_from(BATCHES)),
        sequence_length=draw(st.sampled_from(LENGTHS)),
        framework=draw(st.sampled_from(stacks)),
        method=method,
        lora=Lora(target_modules=("all-linear",)),
    )


@st.composite
def fixed_trainings(draw: st.DrawFn) -> TrainingQuestion:
    """Draw a job with degrees that multiply to its GPUs and replicas that divide its batch."""
    asked = draw(trainings())
    gpus, batch, model = asked.hardware.gpus.minimum, asked.global_batch_size, asked.model

    def degree(within: int, most: int) -> int:
        return draw(st.sampled_from([each for each in divisors(within) if each <= max(most, 1)]))

    data = draw(st.sampled_from([each for each in divisors(gpus) if batch % each == 0]))
    tensor = degree(gpus // data, model.key_value_heads)
    pipeline = degree(gpus // (data * tensor), model.num_layers)
    layout = LayoutRequest(
        data_parallel=data,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        context_parallel=gpus // (data * tensor * pipeline),
        shard_group=draw(st.none() | st.sampled_from(divisors(data))),
    )
    return replace(asked, layout=layout)


def answered(asked: TrainingQuestion) -> Alternative | None:
    try:
        return best_layout(asked)
    except PlimsollError:
        return None


@law(few=60, many=2000)
@given(fixed_trainings())
def test_what_is_answered_with_a_layout_fixed_is_answered_with_it_open(asked: TrainingQuestion):
    assume(answered(asked) is not None)
    assert best_layout(replace(asked, layout=LayoutRequest())) is not None


def test_frozen_experts_on_ranks_that_tensor_parallelism_does_not_divide_have_their_unpacking_timed():
    # Among the layouts of 24 GPUs are experts on 6 ranks beside tensor parallelism over 8.
    model = described("stepfun-ai/Step-3.7-Flash")
    job = question(model=model, gpus=24, sequence_length=512, global_batch_size=24, framework="reference")
    assert best_layout(replace(job, method="qlora")).verdict == "fits"


def test_a_shard_group_leaves_out_the_stacks_that_shard_nothing_and_plans_with_the_others():
    model = described("deepseek-ai/DeepSeek-R1-Distill-Llama-70B")
    job = question(model=model, gpus=1, sequence_length=2048, global_batch_size=3072, framework="any", method="lora")
    assert best_layout(replace(job, layout=LayoutRequest(shard_group=1))).layout.framework != "ddp"


@law(few=20, many=1000)
@given(trainings())
def test_what_was_found_is_told_whole(asked: TrainingQuestion):
    found = answered(asked)
    assume(found is not None)
    answer = plan_training(asked, stop_advising=lambda: True)
    assert answer.omitted == ()
    assert answer.plan.layout == found.layout
    assert found.layout.gpus in answer.plan.run.elastic_gpus or not answer.fits
    assert answer.summary.endswith(".")
    assert all(note.endswith(".") for note in answer.assumptions)


@law(few=20, many=1000)
@given(trainings())
def test_the_figures_of_a_summary_go_together(asked: TrainingQuestion):
    assume(answered(asked) is not None)
    said = plan_training(asked, stop_advising=lambda: True).summary
    figures = {name: int(number) for name, number in re.findall(r"(data|tensor|pipeline|context) (\d+)", said)}
    sizes = re.search(r"micro-batch (\d+)(?: x (\d+) accumulated)?", said)
    gpus = re.search(r" on (\d+) x ", said)
    assert sizes is not None
    assert gpus is not None
    assert math.prod(figures.values()) == int(gpus[1])
    assert int(sizes[1]) * int(sizes[2] or 1) * figures["data"] == asked.global_batch_size


@law(few=4, many=200)
@given(trainings())
def test_what_a_refusal_offers_is_answered(asked: TrainingQuestion):
    try:
        plan_training(asked, stop_advising=lambda: True)
    except ImpossibleLayout as refusal:
        offered = {
            field: [int(number) for number in re.findall(r"\d+", numbers)]
            for field, numbers in re.findall(r"(gpus|global_batch_size) to ([\d or]+)", refusal.detail)
        }
        for gpus in offered.get("gpus", []):
            hardware = replace(asked.hardware, gpus=GpuCount(minimum=gpus, maximum=gpus))
            assert plan_without_advice(replace(asked, hardware=hardware)).fits
        for batch in offered.get("global_batch_size", []):
            assert plan_without_advice(replace(asked, global_batch_size=batch)).fits
    except PlimsollError:
        return
