"""What pipelines need: layers for every stage, equal ones where a stack wants them, and rounds of micro-batches."""

from __future__ import annotations

import numpy as np

from plimsoll.planners.ground.figures import counted
from plimsoll.planners.ground.terms import ONE_FORWARD_ONE_BACKWARD
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import ALL_LAYERS, FULL, BoolArray, Candidates, IntArray
from plimsoll.planners.layouts.distinct import distinct
from plimsoll.planners.layouts.stages import compute_weighted_stages
from plimsoll.planners.search.rules.rule import NOWHERE, Asked, Breach, Case, FixedBreach, Rule


def _chunks(layouts: Candidates) -> IntArray:
    return layouts.pipeline_parallel * layouts.virtual_pipeline


def _outnumber_layers(layouts: Candidates, asked: Asked) -> BoolArray:
    """Return where some chunk of a pipeline stage has no layer."""
    outnumber: BoolArray = _chunks(layouts) > asked.model.num_layers
    return outnumber


def _too_many_chunks(case: Case, asked: Asked) -> str:
    stages, virtual, layers = case.layout.pipeline_parallel, case.layout.virtual_pipeline, asked.model.num_layers
    product = f"pipeline_parallel {stages} x virtual_pipeline {virtual} = {stages * virtual}"
    if case.is_formed:
        return f"{product} chunks are more than the {layers} layers."
    return f"{product} pipeline chunks need at least as many layers, and the model has {layers}."


STAGES_HAVE_LAYERS = Rule(
    name="stages_have_layers",
    field="pipeline_parallel",
    reads=("pipeline_parallel", "virtual_pipeline"),
    reason="pipeline_parallel x virtual_pipeline must not exceed the layers",
    breaches=(FixedBreach(where=_outnumber_layers, words=_too_many_chunks),),
)


def _leave_a_stage_empty(layouts: Candidates, job: Job) -> BoolArray:
    """Return where a stage is dealt no block, which stacks that deal by compute do not see to.

    Of the Ultra-Scale Playbook's 100 runs with a stage left empty none ran; deeper
    pipelines than layers are among them.
    """
    if job.profile.can.stage_rule != "by_compute":
        return NOWHERE
    degrees, place = distinct(layouts.pipeline_parallel)
    empty = np.array([compute_weighted_stages(job.model, degree).reached != degree for degree in degrees.tolist()])
    left: BoolArray = empty[place]
    return left


def _empty_stages(case: Case, job: Job) -> str:
    stages = case.layout.pipeline_parallel
    reached = compute_weighted_stages(job.model, stages).reached
    return (
        f"pipeline_parallel {stages} is too many: {job.profile.name} gives each stage a like share of the work, so "
        f"{counted(reached, 'stage')} take all layers and {stages - reached} would have none."
    )


STAGES_HAVE_BLOCKS = Rule(
    name="stages_have_blocks",
    field="pipeline_parallel",
    reads=("pipeline_parallel",),
    reason="every stage needs a layer, the head or the loss",
    breaches=(Breach(where=_leave_a_stage_empty, words=_empty_stages),),
)


def _are_uneven(layouts: Candidates, job: Job) -> BoolArray:
    """Return where a stack that divides layers evenly has stages that cannot be."""
    if not job.profile.can.even_stages:
        return NOWHERE
    uneven: BoolArray = (layouts.virtual_pipeline == 1) & (job.model.num_layers % layouts.pipeline_parallel != 0)
    return uneven


def _interleave_unevenly(layouts: Candidates, job: Job) -> BoolArray:
    """Return where the chunks of an interleaved schedule, which is even on every stack, cannot be."""
    uneven: BoolArray = (layouts.virtual_pipeline > 1) & (job.model.num_layers % _chunks(layouts) != 0)
    return uneven


def _uneven_stages(case: Case, job: Job) -> str:
    stages, layers = case.layout.pipeline_parallel, job.model.num_layers
    even = [degree for degree in range(1, layers + 1) if layers % degree == 0]
    below, above = max(degree for degree in even if degree < stages), [degree for degree in even if degree > stages]
    return (
        f"pipeline_parallel {stages} does not divide the {layers} layers, and {job.profile.name} is planned with "
        f"equal stages: {' or '.join(map(str, (below, *above[:1])))} does, where it divides the GPUs too."
    )


def _uneven_chunks(case: Case, job: Job) -> str:
    stages, virtual = case.layout.pipeline_parallel, case.layout.virtual_pipeline
    return (
        f"pipeline_parallel {stages} x virtual_pipeline {virtual} = {stages * virtual} chunks do not divide the "
        f"{job.model.num_layers} layers."
    )


STAGES_ARE_EVEN = Rule(
    name="stages_are_even",
    field="pipeline_parallel",
    reads=("pipeline_parallel", "virtual_pipeline"),
    reason="pipeline_parallel x virtual_pipeline must divide the layers",
    breaches=(
        Breach(where=_are_uneven, words=_uneven_stages),
        Breach(where=_interleave_unevenly, words=_uneven_chunks),
    ),
)


def _recompute_unevenly(layouts: Candidates, _job: Job) -> BoolArray:
    """Return where recomputed layers are not as many in every virtual stage of a stage.

    Source: Megatron-LM, training/arguments.py: --recompute-num-layers counts the layers of each virtual stage.
    """
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
    rest = layouts.micro_batches(job.global_batch_size) % layouts.pipeline_parallel
    short: BoolArray = _is_interleaved(layouts) & (rest != 0)
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
