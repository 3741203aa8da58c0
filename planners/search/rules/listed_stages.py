"""What a list of a pipeline's blocks contradicts by itself: the model's layers, or the degrees that stand beside it."""

from __future__ import annotations

from collections.abc import Iterator

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.ground.figures import counted
from plimsoll.planners.jobs.pipeline_layouts import LISTED, PipelineLayout, balanced_list, read_pipeline_layout
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.search.rules.rule import RequestRule

FIELD = "pipeline_layout"
MOST_TRIED = 5  # numbers of stages


def _contradicted(question: TrainingQuestion) -> Iterator[tuple[str, str]]:
    asked = question.layout.pipeline_layout
    way = None if asked is None else read_pipeline_layout(asked)
    if way is None or way.form != LISTED:
        return
    detail = _of_layers(way, question.model) or _of_multi_token(way, question) or _of_stages(way, question)
    if detail:
        yield FIELD, detail


def _of_layers(way: PipelineLayout, model: ModelSpec) -> str:
    """Return which layer is in no stage, or is none of the model's."""
    listed, layers = sum(way.layers), model.num_layers
    if listed == layers:
        return ""
    said = f"pipeline_layout lists {counted(listed, 'layer')} in {counted(len(way.layers), 'stage')}, and "
    if listed < layers:
        return f"{said}{model.name} has {layers}: layer {listed}, counted from 0, is in no stage."
    at = next(stage for stage in range(len(way.layers)) if sum(way.layers[: stage + 1]) > layers)
    return f"{said}{model.name} has {layers}: stage {at} has a layer {layers}, counted from 0, which does not exist."


def _of_multi_token(way: PipelineLayout, question: TrainingQuestion) -> str:
    listed, wanted = sum(way.multi_token), question.multi_token_prediction
    if listed == wanted:
        return ""
    return (
        f"pipeline_layout lists {counted(listed, 'layer')} for multi-token prediction (m), and "
        f"training.multi_token_prediction asks for {wanted}."
    )


def _of_stages(way: PipelineLayout, question: TrainingQuestion) -> str:
    """Return how the stages that are listed differ from the degrees that are fixed."""
    degree, chunks = question.layout.pipeline_parallel, question.layout.virtual_pipeline
    listed = len(way.layers)
    if not degree or (listed % degree == 0 and chunks in (None, listed // degree)):
        return ""
    wanted = f"pipeline_parallel {degree}" + (f" x virtual_pipeline {chunks}" if chunks else "")
    return f"pipeline_layout lists {counted(listed, 'stage')}, which {wanted} cannot be."


def _such_as(question: TrainingQuestion) -> Iterator[str]:
    """Yield lists that the fixed degrees can have, else of as many stages as were listed, and then of other numbers."""
    degree, chunks = question.layout.pipeline_parallel, question.layout.virtual_pipeline
    listed = len(read_pipeline_layout(question.layout.pipeline_layout or "").layers)
    near = sorted(range(1, 2 * listed), key=lambda stages: abs(stages - listed))[:MOST_TRIED]
    for stages in [degree * (chunks or 1)] if degree else near:
        found = balanced_list(question.model, stages, question.multi_token_prediction) if stages > 0 else None
        if found:
            yield found


PIPELINE_LAYOUT_LISTS_LAYERS = RequestRule(
    name="pipeline_layout_lists_layers", breaches=_contradicted, instead=_such_as
)
