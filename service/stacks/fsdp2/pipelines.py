"""How torchtitan is told which layers the stages of a pipeline have, and by which schedule they run; and told back.

Source: torchtitan 0.2.2, distributed/pipeline_parallel.py, `pipeline_llm`; schedules by their names in
torch.distributed.pipelining.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.jobs.block_lists import layers_of_modules, written
from plimsoll.planners.jobs.pipeline_layouts import FEWER_AT_ENDS, read_pipeline_layout
from plimsoll.planners.plans import Layout

# Where nobody says otherwise.
STAGES_OF_A_RANK = 2
FEWER_LAYERS = 1
SCHEDULE = "1F1B"

# Those that are planned, as torch.distributed.pipelining finds them; the others divide or order passes otherwise.
SCHEDULES = {"1f1b": "1f1b", "interleaved1f1b": "1f1b", "gpipe": "gpipe"}
OF_SEVERAL_STAGES = "interleaved1f1b"


class NotPlanned(Exception):
    """Options that say a job which is not planned; the text says why. One that `cannot_run` torchtitan refuses too."""

    def __init__(self, reason: str, *, cannot_run: bool = False) -> None:
        super().__init__(reason)
        self.cannot_run = cannot_run


def schedule_name(layout: Layout) -> str:
    """Return a plan's schedule by its name in torch.distributed.pipelining."""
    if layout.pipeline_schedule == "gpipe":
        return "GPipe"
    return "Interleaved1F1B" if layout.virtual_pipeline > 1 else "1F1B"


def division_options(layout: Layout, chunks: Sequence[Sequence[tuple[int, int]]]) -> dict[str, Any]:
    """Return what of `[parallelism]` says which layers the stages have.

    `chunks` are the first and last layer of each chunk of each stage. Modules are listed where no number of layers
    fewer or of each stage says the same.
    """
    way = read_pipeline_layout(layout.pipeline_layout) if layout.pipeline_layout else None
    if way is not None and way.form == FEWER_AT_ENDS:
        fewer = (way.first or 0, way.last or 0)
        num_layers = sum(last - first + 1 for stage in chunks for first, last in stage)
        each = _layers_of_stage(num_layers + sum(fewer), layout)
        if each != 0:
            told = {
                "pipeline_parallel_first_stage_less_layers": fewer[0],
                "pipeline_parallel_last_stage_less_layers": fewer[1],
            }
            return told if each is None else {**told, "pipeline_parallel_layers_per_stage": each}
    return {"module_fqns_per_model_part": _model_parts(layout, chunks)}


def _layers_of_stage(blocks: int, layout: Layout) -> int | None:
    """Return the layers a stage that make as many stages; None where none need be told, 0 where no number does."""
    if layout.virtual_pipeline in (1, STAGES_OF_A_RANK):
        return None
    stages = layout.pipeline_parallel * layout.virtual_pipeline
    each = -(-blocks // stages)
    return each if -(-blocks // each) == stages else 0


def _model_parts(layout: Layout, chunks: Sequence[Sequence[tuple[int, int]]]) -> list[list[str]]:
    """Return the modules of each part of the model in order; interleaved stages take every p-th part."""
    spans = [stage[chunk] for chunk in range(layout.virtual_pipeline) for stage in chunks]
    named = [[f"layers.{layer}" for layer in range(first, last + 1)] for first, last in spans]
    named[0].insert(0, "tok_embeddings")
    named[-1] += ["norm", "output"]
    return named


def told_pipeline(values: Mapping[str, Any], pipeline_parallel: int, num_layers: int) -> dict[str, Any]:
    """Return the fields of a layout that options say about a pipeline; `values` are by our names (`flags.py`).

    Raises NotPlanned.
    """
    told = str(values.get("schedule", SCHEDULE))
    schedule = SCHEDULES.get(told.lower())
    if schedule is None or values.get("schedule_file"):
        raise NotPlanned(f"schedule {told[:40]} is not planned; 1F1B, Interleaved1F1B and GPipe are")
    is_interleaved = told.lower() == OF_SEVERAL_STAGES
    layout, stages = _division(values, num_layers, pipeline_parallel * (STAGES_OF_A_RANK if is_interleaved else 1))
    of_rank, rest = divmod(stages, pipeline_parallel)
    if rest or not of_rank:
        raise NotPlanned(f"{stages} stages are no multiple of {pipeline_parallel} pipeline ranks", cannot_run=True)
    if (of_rank > 1) != is_interleaved:
        needed = "Interleaved1F1B" if of_rank > 1 else "1F1B or GPipe"
        raise NotPlanned(f"{told} does not run {of_rank} stages of a rank: {needed} does", cannot_run=True)
    return {"virtual_pipeline": of_rank, "pipeline_layout": layout, "pipeline_schedule": schedule}


def _division(values: Mapping[str, Any], num_layers: int, stages: int) -> tuple[str, int]:
    """Return the way to divide blocks, as `layout.pipeline_layout` has it, and the stages, so many untold."""
    first, last = (int(values.get(end, FEWER_LAYERS)) for end in ("fewer_first", "fewer_last"))
    of_stage = values.get("layers_of_stage")
    if of_stage is not None:
        stages = -(-(num_layers + first + last) // max(int(of_stage), 1))
    if "modules" not in values:
        return f"first-less={first},last-less={last}", stages
    try:
        layers = layers_of_modules(str(values["modules"]))
    except InvalidQuestion as error:
        raise NotPlanned(f"module_fqns_per_model_part is not planned: {error.detail}") from error
    return written(layers), len(layers)
