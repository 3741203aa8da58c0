"""The law that what an answer says of its layout can be asked for, and is then the same plan."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.planners.ground.hardware import GpuCount
from plimsoll.planners.plans import Layout
from plimsoll.planners.questions import LayoutRequest, Overlap, Recompute, TrainingQuestion
from plimsoll.planners.search.able import problems
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.planners.training.planning import best_layout, plan_without_advice
from plimsoll.service.requests.training import TrainingPart, training_fields
from tests.properties.laws import law
from tests.properties.trainings import STACKS, fixed, questions

SOMETIMES = (None, None, None, False, True)
RECOMPUTED: tuple[Any, ...] = (
    "none", "selective", "full", {"modules": ["core_attn"]}, {"modules": ["layernorm"]},
    {"modules": ["mlp", "layernorm"]}, {"every": 2}, {"full_layers": 2},
)  # fmt: skip


@st.composite
def trainings(draw: st.DrawFn) -> TrainingQuestion:
    """A job with anything between all of its layout fixed and nothing, by a stack that can do what it asks for."""
    stack = draw(st.sampled_from((*STACKS, "any", "megatron", "fsdp2")))
    asked = draw(questions(stack))
    asked = replace(
        asked,
        optimizer=draw(st.sampled_from((asked.optimizer, asked.optimizer, "muon", "sgd", "lion"))),
        kernels=draw(st.sampled_from((None, None, "compiled", "eager", "fused"))),
    )
    if stack != "any" and draw(st.booleans()):
        asked = fixed(draw, asked, stack)
    if draw(st.booleans()):
        traffic = Overlap(**{field.name: draw(st.sampled_from(SOMETIMES)) for field in fields(Overlap)})
        asked = replace(asked, layout=replace(asked.layout, overlap=traffic))
    for name, values in {
        "pipeline_schedule": ("1f1b", "gpipe", "pipedream"),
        "shard_group": (1, 2, 4, 8),
        "offload": ("none", "optimizer", "optimizer+parameters"),
        "offload_target": ("cpu", "nvme"),
    }.items():
        if draw(st.integers(0, 4)) == 0:
            chosen = {name: draw(st.sampled_from(values))}
            asked = replace(asked, layout=replace(asked.layout, **chosen))  # type: ignore[arg-type]
    if draw(st.integers(0, 3)) == 0:
        asked = replace(asked, recompute=recomputed(draw(st.sampled_from(RECOMPUTED))))
    assume(stack == "any" or not problems(asked, load_profile(stack)))
    return asked


def recomputed(asked: Any) -> Recompute | None:
    """What a request asks for, as a question has it."""
    recompute: Recompute | None = training_fields(TrainingPart.model_validate({"recompute": asked}))["recompute"]
    return recompute


def sent_back(asked: TrainingQuestion, layout: Layout) -> TrainingQuestion:
    """The same question with a layout of its answer fixed."""
    degrees = {field.name: getattr(layout, field.name) for field in fields(LayoutRequest)}
    assert layout.overlap is not None
    return replace(
        asked,
        hardware=replace(asked.hardware, gpus=GpuCount(minimum=layout.gpus, maximum=layout.gpus)),
        layout=LayoutRequest(**{**degrees, "overlap": Overlap(**asdict(layout.overlap))}),
        framework=layout.framework,
        recompute=recomputed(layout.recompute_asked),
        micro_batch_size=layout.micro_batch_size,
        activation_offload=layout.activation_offload,
        fused_cross_entropy=layout.fused_cross_entropy,
    )


@law(few=25, many=1500)
@given(trainings())
def test_an_answers_layout_sent_back_is_the_same_plan(asked: TrainingQuestion):
    try:
        first = plan_without_advice(asked)
    except PlimsollError:
        return
    second = plan_without_advice(sent_back(asked, first.plan.layout))
    assert second.plan.layout == first.plan.layout
    assert second.plan.memory == first.plan.memory
    assert second.plan.step == first.plan.step


@law(few=15, many=1000)
@given(trainings())
def test_an_alternative_sent_back_is_the_same_layout(asked: TrainingQuestion):
    try:
        answer = plan_without_advice(asked)
    except PlimsollError:
        return
    for other in answer.alternatives[:3]:
        # A tie is with the plan, which is another one here.
        alone = replace(best_layout(sent_back(asked, other.layout)), equal_within_band=other.equal_within_band)
        assert alone == other
