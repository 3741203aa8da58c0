"""Memory over a step, for every stack and the catalogue's models: the moments stand in the order in which they come."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.planners.layouts.candidates import FULL
from plimsoll.planners.plans import MemoryMoment
from plimsoll.planners.stacks.profile import load_profile, stack_names
from tests.planners.training_cases import memory
from tests.properties.laws import law

# Frozen layers whose hooks hold on to recomputed inputs are the one way in which more is kept as layers finish.
METHOD = "full"


def _models() -> list[ModelSpec]:
    """Return the catalogue's models whose layers are all of one kind: of several each has a working set of its own."""
    described = (describe_config(model.config, name=model.id) for model in catalogue().models)
    return [spec for spec in described if len(spec.layers) == 1]


@st.composite
def _jobs(draw: st.DrawFn) -> dict[str, Any]:
    framework = draw(st.sampled_from(stack_names()))
    can = load_profile(framework).can
    layout = {
        "data_parallel": draw(st.sampled_from([1, 2, 3, 8, 24])),
        "tensor_parallel": draw(st.sampled_from([1, 2, 4] if can.tensor_parallel else [1])),
        "pipeline_parallel": draw(st.sampled_from([1, 2, 4] if can.pipeline_parallel else [1])),
        "zero_stage": draw(st.sampled_from(can.zero_stages)),
        "recompute": draw(st.sampled_from([0, 1, FULL])),
    }
    if layout["recompute"] == FULL and "full_layers" in can.recompute:
        layout["full_layers"] = draw(st.sampled_from([1, 2, 5]))
    batches = draw(st.sampled_from([1, 3, 5]))
    return {
        "framework": framework,
        "layout": layout,
        "sequence_length": draw(st.sampled_from([64, 512, 4096])),
        "global_batch_size": layout["data_parallel"] * batches,
    }


MODELS = _models()


def _backward(job: dict[str, Any], model: ModelSpec) -> list[tuple[MemoryMoment, ...]]:
    try:
        planned = memory(model=model, method=METHOD, gpus=1, **job)
    except PlimsollError:  # heads that tensor parallelism does not divide, layers that stages do not
        assume(False)
    return [tuple(each for each in stage.moments if each.phase == "backward") for stage in planned.stages]


@law(few=40, many=2000)
@given(job=_jobs(), place=st.integers(min_value=0, max_value=len(MODELS) - 1))
def test_the_backward_pass_comes_down_from_the_head_to_the_embedding(job: dict[str, Any], place: int) -> None:
    for moments in _backward(job, MODELS[place]):
        layers = [moment.layer for moment in moments if moment.layer is not None]
        assert layers == sorted(set(layers), reverse=True)


@law(few=40, many=2000)
@given(job=_jobs(), place=st.integers(min_value=0, max_value=len(MODELS) - 1))
def test_layers_that_are_done_keep_nothing(job: dict[str, Any], place: int) -> None:
    # An engine's buckets are full at one layer and empty at the next: other moments of these are the worst.
    assume(load_profile(job["framework"]).zero is None)
    for moments in _backward(job, MODELS[place]):
        of_layers = [moment.items.activations for moment in moments if moment.layer is not None]
        # Beside the highest and the lowest stand head and embedding, by which other moments of theirs are the worst.
        between = of_layers[1:-1]
        assert between == sorted(between, reverse=True)
