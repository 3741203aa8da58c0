"""How torchtitan is told which layers the stages of a pipeline have, and by which schedule they run.

Source: torchtitan 0.2.2, distributed/pipeline_parallel.py, `pipeline_llm`; schedules by their names in
torch.distributed.pipelining.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plimsoll.planners.jobs.pipeline_layouts import FEWER_AT_ENDS, read_pipeline_layout
from plimsoll.planners.plans import Layout

# Where nobody says otherwise.
STAGES_OF_A_RANK = 2
FEWER_LAYERS = 1


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
