"""A training run that was measured, as an observation to calibrate by."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from plimsoll.planners.calibration.training import Observation
from plimsoll.planners.ground.terms import OFFLOADS, RECOMPUTE_MODES
from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.layouts.candidates import ALL_LAYERS, Candidates, candidates_from_rows
from plimsoll.planners.memory.peak import peak_bytes
from plimsoll.planners.plans import Layout
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.planners.timing.efficiency import GpuEfficiency, load_efficiency
from plimsoll.planners.timing.step import step_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One run: the question, the layout it ran in, and what a step took."""

    question: TrainingQuestion
    layout: Layout
    step_seconds: float
    pointer: str


def observed_run(run: MeasuredRun) -> Observation:
    """Return the run's step as an observation; its estimate is the planner's for that one layout."""
    layouts = layout_as_candidates(run.layout)
    divided = replace(run.question.layout, pipeline_layout=run.layout.pipeline_layout)
    job = training_job(replace(run.question, layout=divided), load_profile(run.layout.framework))
    shipped = load_efficiency(run.layout.framework, run.question.hardware.gpu.id)
    peaks = np.array(peak_bytes(layouts, job), dtype=np.float64)

    def estimate(gpu: GpuEfficiency) -> float:
        efficiency = replace(shipped, gpu=gpu)
        return float(step_seconds(layouts, job, run.question.hardware, efficiency, peaks).total[0])

    return Observation(
        pointer=run.pointer,
        what=_name(run),
        kind="run",
        stack=shipped.stack.name,
        measured_seconds=run.step_seconds,
        estimate=estimate,
    )


def layout_as_candidates(layout: Layout) -> Candidates:
    """Return one layout, as clients receive it, as the arrays of one."""
    return candidates_from_rows(
        [
            {
                "data_parallel": layout.data_parallel,
                "tensor_parallel": layout.tensor_parallel,
                "pipeline_parallel": layout.pipeline_parallel,
                "virtual_pipeline": layout.virtual_pipeline,
                "expert_overlap": layout.overlap is not None and layout.overlap.expert_parallel,
                "context_parallel": layout.context_parallel,
                "expert_parallel": layout.expert_parallel,
                "sequence_parallel": layout.sequence_parallel,
                "zero_stage": layout.zero_stage,
                "shard_group": layout.shard_group,
                "offload": OFFLOADS.index(layout.offload),
                "activation_offload": layout.activation_offload,
                "micro_batch_size": layout.micro_batch_size,
                "recompute": RECOMPUTE_MODES.index(layout.recompute),
                "full_layers": ALL_LAYERS if layout.recompute_layers is None else layout.recompute_layers,
                "fused_cross_entropy": layout.fused_cross_entropy,
            }
        ]
    )


def _name(run: MeasuredRun) -> str:
    """Return what tells the run from others: two of equal names are repeats."""
    question, layout = run.question, run.layout
    degrees = (
        f"d{layout.data_parallel} t{layout.tensor_parallel} p{layout.pipeline_parallel} c{layout.context_parallel}"
    )
    more = (
        f"v{layout.virtual_pipeline} e{layout.expert_parallel} s{int(layout.sequence_parallel)} g{layout.shard_group}"
    )
    recompute = layout.recompute if layout.recompute_layers is None else f"{layout.recompute} {layout.recompute_layers}"
    job = f"{question.method}, {question.precision}, {question.optimizer}, {question.attention}"
    return (
        f"{question.model.name} of {question.model.parameters:,} parameters ({job}) by {layout.framework}: "
        f"{question.global_batch_size:,} x {question.sequence_length:,} tokens on {degrees} {more}, "
        f"{question.hardware.gpus_per_node} per node, ZeRO {layout.zero_stage}, micro-batch {layout.micro_batch_size}, "
        f"recompute {recompute}, offload {layout.offload}, {'a' if layout.fused_cross_entropy else 'no'} fused loss"
    )
