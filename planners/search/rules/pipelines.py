"""What pipelines need: layers for every stage, equal ones where a stack wants them, and rounds of micro-batches."""

from __future__ import annotations

import functools

import numpy as np

from plimsoll.planners.ground.figures import counted
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.ground.terms import ONE_FORWARD_ONE_BACKWARD
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.jobs.pipeline_layouts import (
    BLOCKS_BESIDE_LAYERS,
    BY_COMPUTE,
    ENDS,
    LISTED,
    PipelineLayout,
    balanced_list,
    nearest_degrees,
    own_way,
    reached_by_compute,
    read_pipeline_layout,
)
from plimsoll.planners.layouts.candidates import ALL_LAYERS, FULL, BoolArray, Candidates, IntArray, any_of
from plimsoll.planners.layouts.stages import MOST_KEPT_LISTS, Pipeline, pipelines_of
from plimsoll.planners.search.rules.rule import NOWHERE, Asked, Breach, Case, FixedBreach, Rule
from plimsoll.planners.stacks.model_code import in_words, traits_of


def _chunks(layouts: Candidates) -> IntArray:
    return layouts.pipeline_parallel * layouts.virtual_pipeline


def _outnumber_layers(layouts: Candidates, asked: Asked) -> BoolArray:
    """Return where some chunk of a pipeline stage has no layer."""
    outnumber: BoolArray = _chunks(layouts) > asked.model.num_layers + BLOCKS_BESIDE_LAYERS
    return outnumber


def _too_many_chunks(case: Case, asked: Asked) -> str:
    stages, virtual, layers = case.layout.pipeline_parallel, case.layout.virtual_pipeline, asked.model.num_layers
    product = f"pipeline_parallel {stages} x virtual_pipeline {virtual} = {stages * virtual}"
    if case.is_formed:
        return f"{product} chunks are more than the {layers} layers."
    if layers // virtual > 1:
        most = f"pipeline_parallel up to {layers // virtual}"
    else:
        most = f"virtual_pipeline up to {layers // stages}" if stages <= layers else "fewer of either"
    return f"{product} pipeline chunks need at least as many layers, and the model has {layers}: {most} would do."


STAGES_HAVE_LAYERS = Rule(
    name="stages_have_layers",
    field="pipeline_parallel",
    reads=("pipeline_parallel", "virtual_pipeline"),
    reason="every stage needs a layer, or the embedding or the head alone",
    breaches=(FixedBreach(where=_outnumber_layers, words=_too_many_chunks),),
)


def _stages_without_code(layouts: Candidates, job: Job) -> BoolArray:
    """Return where a model is cut into stages that the stack has no code to cut so."""
    if not _uncut(job):
        return NOWHERE
    staged: BoolArray = layouts.pipeline_parallel > 1
    return staged


def _uncut(job: Job) -> frozenset[str]:
    return traits_of(job.model) & set(job.profile.models.pipeline_lacks)


def _no_stages(case: Case, job: Job) -> str:
    return (
        f"pipeline_parallel {case.layout.pipeline_parallel}: {job.profile.name} has no pipelines for "
        f"{in_words(_uncut(job))}. It must be 1."
    )


PIPELINES_HAVE_CODE = Rule(
    name="pipelines_have_code",
    field="pipeline_parallel",
    reads=("pipeline_parallel",),
    reason="the framework has no pipelines for such a model: pipeline_parallel must be 1",
    breaches=(Breach(where=_stages_without_code, words=_no_stages),),
)


def _cannot_be_divided(layouts: Candidates, job: Job) -> BoolArray:
    """Return where a pipeline cannot have its blocks divided in its way; none that the search balances is there then.

    Of the Ultra-Scale Playbook's 100 runs with a stage left empty none ran, deeper pipelines than layers among them.
    """
    different, place = pipelines_of(layouts, job)
    are_undivided = _are_undivided(ByIdentity(different))
    return NOWHERE if are_undivided is None else are_undivided[place]


@functools.lru_cache(maxsize=MOST_KEPT_LISTS)
def _are_undivided(same: ByIdentity[tuple[Pipeline, ...]]) -> BoolArray | None:
    """Return which pipelines cannot be divided in their way, None where all can."""
    ways = ((each.way, each.model.value, each.degree, each.chunks) for each in same.value)
    found = np.array([way.division(model, degree, chunks) is None for way, model, degree, chunks in ways])
    return found if found.any() else None


def _undivided(case: Case, job: Job) -> str:
    """Return why a way does not divide these blocks, and the nearest degrees that it does."""
    stages, virtual, model = case.layout.pipeline_parallel, case.layout.virtual_pipeline, job.model
    way = job.pipeline_layouts[0]
    into = counted(stages, "stage") if virtual == 1 else f"{stages} x {virtual} = {stages * virtual} chunks"
    if way.form == LISTED:
        if _repeats_table(way, stages, virtual):
            return (
                "pipeline_layout has the layers for multi-token prediction (m) on the first of several stages with "
                "chunks, which would hold the embedding's table twice: put them in the stage of the head (L)."
            )
        return f"pipeline_layout lists {counted(len(way.layers), 'stage')}, and this layout has {into}: list as many."
    if stages == 1:
        return f"pipeline_layout {way.told(model, stages, virtual)} needs pipeline_parallel above 1."
    if way.form == BY_COMPUTE:
        reached = reached_by_compute(model, stages)
        return (
            f"pipeline_parallel {stages} is too many: {job.profile.name} gives each stage a like share of the work, so "
            f"{counted(reached, 'stage')} take all layers and {stages - reached} would have none."
        )
    by = f"by pipeline_layout {way.told(model, stages, virtual)}{_uneven_ends(way, case, job)}"
    if len(job.pipeline_layouts) > 1:
        by = f"in any way that {job.profile.name} is planned with"
    return f"{counted(model.num_layers, 'layer')} cannot be divided into {into} {by}: {_would_divide(case, job)}."


def _would_divide(case: Case, job: Job) -> str:
    """Return what divides these blocks instead: nearest degrees, and a way of the stack's at the same degrees."""
    stages, virtual, model = case.layout.pipeline_parallel, case.layout.virtual_pipeline, job.model
    ways, forms = job.pipeline_layouts, job.profile.can.pipeline_layouts
    of_gpus = nearest_degrees(
        ways, model, stages, virtual, case.layout.gpus, lambda degree: case.works({"pipeline_parallel": degree})
    )
    of_any = nearest_degrees(ways, model, stages, virtual)
    told, own = None, own_way(forms)
    if LISTED in forms and model.multi_token is None:
        told = balanced_list(model, stages * virtual)
    elif read_pipeline_layout(own).division(model, stages, virtual) is not None:
        told = own
    if told and not case.works({"pipeline_layout": told}):
        told = None
    hints = [f"pipeline_parallel {of_gpus}"] if of_gpus else []
    hints += [f"pipeline_layout {told}"] if told else []
    fewer = (count for count in range(virtual - 1, 0, -1) if any(way.division(model, stages, count) for way in ways))
    chunks = None if told else next((count for count in fewer if case.works({"virtual_pipeline": count})), None)
    hints += [f"virtual_pipeline {chunks}"] if chunks else []
    said = of_gpus.split(" or ")
    elsewhere = " or ".join(degree for degree in of_any.split(" or ") if degree not in said)
    if not hints and not elsewhere:
        return f"no degree can{f' in {virtual} chunks a stage' if virtual > 1 else ''}"
    if not hints:
        return f"pipeline_parallel {elsewhere} can, on other numbers of GPUs"
    others = f", and on other numbers of GPUs pipeline_parallel {elsewhere}" if elsewhere else ""
    return f"{' or '.join(hints)} can{others}"


def _repeats_table(way: PipelineLayout, stages: int, virtual: int) -> bool:
    """Return whether a list has layers for multi-token prediction in a later chunk of the first stage."""
    return virtual > 1 and len(way.multi_token) == stages * virtual and any(way.multi_token[::stages])


def _uneven_ends(way: PipelineLayout, case: Case, job: Job) -> str:
    """Return what of a way that names the ends' layers does not divide, in parentheses; empty of another way."""
    if way.form != ENDS:
        return ""
    virtual = case.layout.virtual_pipeline
    given = {name: count for name, count in (("first", way.first), ("last", way.last)) if count is not None}
    for name, count in given.items():
        if count % virtual or not count:
            return f" (the {name} stage's {counted(count, 'layer')} cannot be in {counted(virtual, 'chunk')})"
    others = case.layout.pipeline_parallel - len(given)
    left = job.model.num_layers - sum(given.values())
    if left < 0:
        return f" ({counted(-left, 'layer')} too many)"
    each = f" of {virtual} chunks each" if virtual > 1 else ""
    return f" ({counted(left, 'layer')} are left for {counted(others, 'stage') if others else 'no stage'}{each})"


PIPELINE_LAYOUT_DIVIDES = Rule(
    name="pipeline_layout_divides",
    field="pipeline_layout",
    reads=("pipeline_parallel", "virtual_pipeline"),
    reason="the blocks must be divided among the stages by the pipeline_layout, and none left empty",
    breaches=(Breach(where=_cannot_be_divided, words=_undivided),),
)


def _recompute_unevenly(layouts: Candidates, _job: Job) -> BoolArray:
    """Return where recomputed layers are not as many in every virtual stage of a stage.

    Source: Megatron-LM, training/arguments.py: --recompute-num-layers counts the layers of each virtual stage.
    """
    if not any_of(_is_interleaved(layouts)):
        return NOWHERE
    is_some = (layouts.recompute == FULL) & (layouts.full_layers != ALL_LAYERS)
    uneven: BoolArray = is_some & (layouts.full_layers % layouts.virtual_pipeline != 0)
    return uneven


def _recomputed(case: Case, _job: Job) -> str:
    virtual, layers = case.layout.virtual_pipeline, case.layout.recompute_layers
    return f"virtual_pipeline {virtual} does not divide the {layers} recomputed layers of a stage."


RECOMPUTED_LAYERS_DIVIDE = Rule(
    name="recomputed_layers_divide",
    field="virtual_pipeline",
    reads=("virtual_pipeline", "full_layers"),
    reason="virtual_pipeline must divide the recomputed layers of a stage",
    breaches=(Breach(where=_recompute_unevenly, words=_recomputed),),
)


def _is_interleaved(layouts: Candidates) -> BoolArray:
    interleaved: BoolArray = layouts.virtual_pipeline > 1
    return interleaved


def _interleave_no_pipeline(layouts: Candidates, _job: Job) -> BoolArray:
    lone: BoolArray = _is_interleaved(layouts) & (layouts.pipeline_parallel == 1)
    return lone


def _interleave_another_schedule(layouts: Candidates, job: Job) -> BoolArray:
    return NOWHERE if job.pipeline_schedule == ONE_FORWARD_ONE_BACKWARD else _is_interleaved(layouts)


def _leave_a_round_short(layouts: Candidates, job: Job) -> BoolArray:
    """Return where micro-batches do not come in whole rounds.

    Source: Narayanan et al. 2021, section 2.2: micro-batches must be a multiple of the stages.
    """
    is_interleaved = _is_interleaved(layouts)
    if not any_of(is_interleaved):
        return NOWHERE
    rest = layouts.micro_batches(job.global_batch_size) % layouts.pipeline_parallel
    short: BoolArray = is_interleaved & (rest != 0)
    return short


def _no_pipeline(case: Case, _job: Job) -> str:
    return f"virtual_pipeline {case.layout.virtual_pipeline} needs pipeline_parallel above 1."


def _another_schedule(case: Case, job: Job) -> str:
    return f"virtual_pipeline {case.layout.virtual_pipeline} needs the schedule 1f1b, not {job.pipeline_schedule}."


def _short_round(case: Case, _job: Job) -> str:
    return (
        f"virtual_pipeline {case.layout.virtual_pipeline} needs a number of micro-batches per step that is a multiple "
        f"of the {case.layout.pipeline_parallel} stages, not {case.layout.gradient_accumulation_steps}."
    )


INTERLEAVING_NEEDS_PIPELINE = Rule(
    name="interleaving_needs_pipeline",
    field="virtual_pipeline",
    reads=("virtual_pipeline", "pipeline_parallel", "data_parallel", "micro_batch_size"),
    reason="virtual_pipeline needs the schedule 1f1b, pipeline_parallel above 1, and a multiple of it as micro-batches",
    breaches=(
        Breach(where=_interleave_no_pipeline, words=_no_pipeline),
        Breach(where=_interleave_another_schedule, words=_another_schedule),
        Breach(where=_leave_a_round_short, words=_short_round),
    ),
)
