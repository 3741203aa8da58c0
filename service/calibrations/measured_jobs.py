"""Measured training jobs of a calibration, resolved into what the planner fits and checks."""

from __future__ import annotations

import dataclasses

from plimsoll.planners.calibration.measured_runs import MeasuredRun, observed_run
from plimsoll.planners.calibration.training import Observation
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidQuestion, PlimsollError
from plimsoll.planners.ground.hardware import Gpu, GpuCount, Hardware
from plimsoll.planners.plans import Layout, layout_from
from plimsoll.planners.questions import LayoutRequest, TrainingQuestion
from plimsoll.planners.training.planning import plan_training
from plimsoll.service.calibrations.report import PeakCheck
from plimsoll.service.models.resolving import ModelResolver
from plimsoll.service.persistence.records import StoredPlan
from plimsoll.service.plans.stored_bodies import plan_body
from plimsoll.service.requests.calibration import CalibrationRun, MeasuredJob
from plimsoll.service.requests.training import LayoutPart, TrainingPart, training_fields


def measured_job(
    gpu: Gpu, run: CalibrationRun, plan: StoredPlan | None, models: ModelResolver, pointer: str
) -> tuple[Observation, PeakCheck | None]:
    """Return a run's step time beside what is estimated, and its peak beside the planner's where it was measured.

    `plan` is the stored one that ran, None where the request describes the job. Raises at what cannot be, with where
    it stands.
    """
    try:
        if plan is not None:
            question, layout, peak_bytes = _planned_run(gpu, plan)
        else:
            question, layout, peak_bytes = _described_run(gpu, run.run, models)
    except PlimsollError as error:
        error.point_by(lambda inner: f"{pointer}/plan_id" if plan is not None else f"{pointer}/run{inner}")
        raise
    tokens = question.global_batch_size * question.sequence_length
    seconds = tokens / run.tokens_per_second if run.tokens_per_second is not None else run.step_seconds
    name = "tokens_per_second" if run.step_seconds is None else "step_seconds"
    measured = MeasuredRun(question=question, layout=layout, step_seconds=seconds or 0.0, pointer=f"{pointer}/{name}")
    if run.peak_bytes is None:
        return observed_run(measured), None
    check = PeakCheck(
        pointer=f"{pointer}/peak_bytes",
        measured_bytes=run.peak_bytes,
        predicted_bytes=peak_bytes,
        relative_error=peak_bytes / run.peak_bytes - 1,
    )
    return observed_run(measured), check


def _described_run(gpu: Gpu, job: MeasuredJob | None, models: ModelResolver) -> tuple[TrainingQuestion, Layout, int]:
    if job is None or job.framework == "any":
        raise InvalidQuestion("Name the framework that ran; 'any' did not.", pointer="/framework")
    question = TrainingQuestion(
        model=models.resolve(job.model).spec,
        hardware=Hardware(
            gpu=gpu,
            gpus=GpuCount(minimum=job.gpus, maximum=job.gpus),
            gpus_per_node=job.gpus_per_node or gpu.gpus_per_node,
        ),
        layout=job.layout.to_layout_request(),
        framework=job.framework,
        **training_fields(job.training),
    )
    plan = plan_training(question).plan
    return question, plan.layout, plan.memory.peak_bytes


def _planned_run(gpu: Gpu, plan: StoredPlan) -> tuple[TrainingQuestion, Layout, int]:
    """Return the question, the layout and the peak of a stored training plan; raise InvalidQuestion for another's."""
    if plan.kind != "train" or plan.gpu != gpu.id or plan.model_config is None:
        raise InvalidQuestion(f"Plan {plan.plan_id} is no training plan of {gpu.id}; it is for {plan.gpu}.")
    answer = plan_body(plan)["plan"]
    asked = plan.request["hardware"]
    hardware = next(one for one in asked.get("fleet", [asked]) if one["gpu"]["id"] == gpu.id)
    figures = hardware["gpu"]
    rates = (figures["peak_flops_per_second"], figures["memory_bytes_per_second"])
    if rates != (dict(gpu.peak_flops_per_second), gpu.memory_bytes_per_second):
        raise InvalidQuestion(f"Plan {plan.plan_id} was made with other rates than the catalogue's {gpu.id}.")
    links = {name: figures[name] for name in ("link_bytes_per_second", "nic_bytes_per_second", "link_kind")}
    question = TrainingQuestion(
        model=describe_config(plan.model_config, name=plan.model),
        hardware=Hardware(
            gpu=dataclasses.replace(gpu, **links),
            gpus=GpuCount(minimum=plan.gpus, maximum=plan.gpus),
            gpus_per_node=hardware["gpus_per_node"],
            reserve_bytes=hardware["reserve_bytes"],
            used_bytes=hardware["used_bytes"],
        ),
        layout=LayoutRequest(overlap=LayoutPart.model_validate(plan.request["layout"]).to_layout_request().overlap),
        framework=plan.framework,
        **training_fields(TrainingPart.model_validate(plan.request["training"])),
    )
    return question, layout_from(answer["layout"]), answer["memory"]["peak_bytes"]
