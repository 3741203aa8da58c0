"""Measured deployments of a calibration, resolved into what the planner fits."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll.planners.calibration.serving import EngineCalibration, MeasuredServing, measured_serving
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidQuestion, PlimsollError
from plimsoll.planners.ground.hardware import Gpu, GpuCount, Hardware, SiteServing
from plimsoll.planners.questions import ServingQuestion
from plimsoll.service.models.resolving import ModelResolver
from plimsoll.service.persistence.records import StoredPlan
from plimsoll.service.plans.questions import in_stored_formats
from plimsoll.service.plans.stored_bodies import plan_body
from plimsoll.service.requests.calibration import CalibrationServing, MeasuredDeployment
from plimsoll.service.requests.hardware import OneHardware
from plimsoll.service.requests.serving import InferRequest, ServingLayoutPart, ServingPart


def measured_deployment(
    gpu: Gpu, run: CalibrationServing, plan: StoredPlan | None, models: ModelResolver, pointer: str
) -> MeasuredServing:
    """Return a measured deployment as the planner fits it; raises at what cannot be, pointing to where it stands."""
    try:
        question = _described(gpu, run.deployment, models) if plan is None else _planned(gpu, plan)
        return measured_serving(
            question, pointer=pointer, token_seconds=run.tpot_seconds, first_token_seconds=run.ttft_seconds
        )
    except PlimsollError as error:
        error.point_by(lambda inner: f"{pointer}/plan_id" if plan is not None else f"{pointer}/deployment{inner}")
        raise


def site_serving(calibrations: Sequence[EngineCalibration]) -> dict[str, SiteServing]:
    """Return what later plans use of each engine's calibration."""
    return {
        each.engine: SiteServing(
            factors={factor.name: factor.fitted for factor in each.factors},
            token_spread=each.token_spread,
            first_token_spread=each.first_token_spread,
        )
        for each in calibrations
    }


def _described(gpu: Gpu, deployment: MeasuredDeployment | None, models: ModelResolver) -> ServingQuestion:
    if deployment is None:
        raise InvalidQuestion("Describe the deployment that ran.", pointer="")
    model = models.resolve(deployment.model)
    request = InferRequest(
        model=deployment.model,
        hardware=OneHardware(gpu=gpu.id, gpus=deployment.gpus),
        serving=deployment.serving,
        layout=deployment.layout,
    )
    hardware = _hardware(gpu, deployment.gpus, deployment.gpus_per_node)
    asked = in_stored_formats(request, model, (hardware,))
    return asked.to_question(model.spec, hardware, scale_block=model.scale_block)


def _planned(gpu: Gpu, plan: StoredPlan) -> ServingQuestion:
    """Return the question of a stored serving plan, its layout and load as it found them."""
    if plan.kind != "infer" or plan.gpu != gpu.id or plan.model_config is None:
        raise InvalidQuestion(f"Plan {plan.plan_id} is no serving plan of {gpu.id}; it is for {plan.gpu}.")
    answer = plan_body(plan)["plan"]
    settings, performance = answer["settings"], answer["performance"]
    if performance is None:
        raise InvalidQuestion(f"Plan {plan.plan_id} holds no request that could have been timed.")
    if answer["layout"]["prefill_replicas"] is not None:
        raise InvalidQuestion(f"Plan {plan.plan_id} has pools of prefill and decode, which are not calibrated.")
    asked = {name: value for name, value in plan.request["serving"].items() if name in ServingPart.model_fields}
    chosen = {
        name: settings[name]
        for name in ("weights", "kv_cache", "max_model_len", "input_tokens", "output_tokens", "max_num_batched_tokens",
                     "max_num_seqs")
    }  # fmt: skip
    dropped = {"slo": None, "requests_per_second": None, "concurrency": performance["concurrency"]}
    layout = {name: answer["layout"][name] for name in ServingLayoutPart.model_fields}
    request = InferRequest(
        model=plan.model,
        hardware=OneHardware(gpu=gpu.id, gpus=plan.gpus),
        serving=ServingPart.model_validate({**asked, **chosen, **dropped}),
        layout=ServingLayoutPart.model_validate(layout),
    )
    spec = describe_config(plan.model_config, name=plan.model)
    return request.to_question(spec, _hardware(gpu, plan.gpus, None))


def _hardware(gpu: Gpu, gpus: int, gpus_per_node: int | None) -> Hardware:
    return Hardware(
        gpu=gpu,
        gpus=GpuCount(minimum=gpus, maximum=gpus),
        gpus_per_node=gpus_per_node or gpu.gpus_per_node,
    )
