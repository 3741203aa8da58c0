"""The making of a plan: the planner asked, its answer written down, and the row that is stored of it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import TypeAlias, TypeVar

import numpy as np
import structlog

from plimsoll.planners.architecture.multi_token import still_assumed
from plimsoll.planners.derived import Derived
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.ground.stopping import ShouldStop
from plimsoll.planners.plans import Layout, TrainingAnswer
from plimsoll.planners.serving.answer import ServingAnswer
from plimsoll.planners.serving.planning import plan_serving_fleet
from plimsoll.planners.training.fleet import plan_fleet
from plimsoll.planners.training.planning import plan_training
from plimsoll.service.artifacts.serving import serving_artifacts
from plimsoll.service.artifacts.training import training_artifacts
from plimsoll.service.ground.canonical import canonical_json, digest
from plimsoll.service.launch.checkpoint import Checkpoint, stated_rope_theta
from plimsoll.service.launch.files import LaunchFiles
from plimsoll.service.launch.kubernetes import Placement
from plimsoll.service.launch.kubernetes_training import training_manifests
from plimsoll.service.launch.slurm import slurm_script
from plimsoll.service.launch.training import TrainingLaunch
from plimsoll.service.models.resolving import ResolvedModel
from plimsoll.service.persistence.records import SeenModel, StoredPlan
from plimsoll.service.plans.answers import InferPlanBody, TimedSearch, TrainPlanBody, answer_body, body_json
from plimsoll.service.plans.finite import finite_body
from plimsoll.service.plans.questions import ResolvedQuestion, in_stored_formats, stored_format_notes
from plimsoll.service.requests.hardware import Fleet
from plimsoll.service.requests.serving import InferRequest
from plimsoll.service.requests.training import TrainRequest

# Ids of models that a paper describes and nobody published (planners/catalogue/models.py).
DESCRIBED_IN_A_PAPER = "paper/"
# A plan is not kept waiting for longer by the advice beside it; what was found until then is said.
MOST_SECONDS_TO_ADVISE = 10.0

log = structlog.get_logger(__name__)

Answer = TypeVar("Answer", TrainingAnswer, ServingAnswer)
Answered: TypeAlias = tuple[TrainPlanBody | InferPlanBody, Hardware]
Answerer: TypeAlias = Callable[[ResolvedQuestion, ShouldStop], Answered]


def train_answer(request: TrainRequest, resolved: ResolvedQuestion, should_stop: ShouldStop) -> Answered:
    """Return the plan of a training job, and the GPUs it is on."""
    questions = [request.to_question(resolved.model.spec, hardware) for hardware in resolved.fleet]
    started = time.perf_counter()
    if isinstance(request.hardware, Fleet):
        ranked = plan_fleet(questions, should_stop)
        found, question = _in_fleet(ranked.answer, ranked.chosen), questions[ranked.chosen]
    else:
        found, question = plan_training(questions[0], should_stop, _plan_is_due(should_stop)), questions[0]
    seconds = time.perf_counter() - started
    launch = TrainingLaunch(
        question=question,
        plan=found.plan,
        model_config=resolved.model.config,
        model_name=resolved.model.name if resolved.model.is_listed else None,
    )
    artifacts = _with_cluster_files(training_artifacts(launch), resolved, found.plan.layout, question.hardware)
    of_model = still_assumed(resolved.model.assumptions, question.multi_token_prediction)
    assumptions = (*request.default_notes(), *of_model, *question.hardware.gpu.assumptions)
    body = answer_body(
        TrainPlanBody, resolved.identity, found, seconds=seconds, artifacts=artifacts, assumptions=assumptions
    )
    return body, question.hardware


def _plan_is_due(should_stop: ShouldStop) -> ShouldStop:
    """Return what stops the search for advice: nobody waits any longer, or it has been given its time."""
    ends = time.perf_counter() + MOST_SECONDS_TO_ADVISE
    return lambda: should_stop() or time.perf_counter() >= ends


def infer_answer(request: InferRequest, resolved: ResolvedQuestion, should_stop: ShouldStop) -> Answered:
    """Return the plan of a deployment, and the GPUs it is on."""
    asked = in_stored_formats(request, resolved.model, resolved.fleet)
    questions = [
        dataclasses.replace(
            asked.to_question(resolved.model.spec, hardware, scale_block=resolved.model.scale_block), learned=learned
        )
        for hardware, learned in zip(resolved.fleet, resolved.learned, strict=True)
    ]
    started = time.perf_counter()
    ranked = plan_serving_fleet(questions, should_stop)
    seconds = time.perf_counter() - started
    found, hardware = ranked.answer, resolved.fleet[ranked.chosen]
    if isinstance(request.hardware, Fleet):
        found = _in_fleet(found, ranked.chosen)
    checkpoint = _checkpoint(request, resolved.model)
    placement = Placement(plan_id=resolved.identity.plan_id, gpu=hardware.gpu)
    artifacts = serving_artifacts(checkpoint, found.plan, hardware, placement, fits=found.fits)
    stored = stored_format_notes(request, resolved.model)
    assumptions = (*resolved.model.assumptions, *stored, *hardware.gpu.assumptions)
    body = answer_body(
        InferPlanBody, resolved.identity, found, seconds=seconds, artifacts=artifacts, assumptions=assumptions
    )
    return body, hardware


def _in_fleet(found: Answer, chosen: int) -> Answer:
    """Return an answer whose advice names the hardware of the fleet's entry that was chosen, as its request does."""
    entry = f"hardware.fleet.{chosen}."
    advice = tuple(
        dataclasses.replace(
            offer, change={name.replace("hardware.", entry, 1): value for name, value in offer.change.items()}
        )
        for offer in found.advice
    )
    return dataclasses.replace(found, advice=advice)


def _checkpoint(request: InferRequest, model: ResolvedModel) -> Checkpoint | None:
    """Return what is served of a model of the catalogue; None where no repository's name is known."""
    if not model.is_listed or model.name.startswith(DESCRIBED_IN_A_PAPER):
        return None
    found = Checkpoint(
        name=model.name,
        stored_weights=None if model.stored is None else model.stored.weights,
        rope_theta=stated_rope_theta(model.config),
        model_type=model.spec.model_type,
    )
    if not model.is_reupload:
        return found
    # A quantized repository of a listed model: its own name is what was asked for, with its owner's.
    asked = str(request.model)
    return dataclasses.replace(found, name=asked) if "/" in asked else None


def _with_cluster_files(
    files: LaunchFiles, resolved: ResolvedQuestion, layout: Layout, hardware: Hardware
) -> LaunchFiles:
    """Return a training plan's launch files with those of cluster schedulers."""
    derived = Derived()
    name, plan_id = resolved.model.name, resolved.identity.plan_id
    placement = Placement(plan_id=plan_id, gpu=hardware.gpu)
    script = derived.part("artifacts.slurm", lambda: slurm_script(name, layout, hardware, plan_id), otherwise=None)
    manifests: dict[str, str] = derived.part(
        "artifacts.kubernetes", lambda: training_manifests(name, layout, hardware, placement), otherwise={}
    )
    made = manifests if script is None else {"slurm": script, **manifests}
    return dataclasses.replace(files, files={**files.files, **made}, omitted=(*files.omitted, *derived.omitted))


def made_plan(resolved: ResolvedQuestion, answer: Answerer, should_stop: ShouldStop) -> tuple[StoredPlan, TimedSearch]:
    """Return the plan as it is stored, every number of it finite.

    Raises InvalidQuestion where one is not that the plan cannot do without.
    """
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            body, hardware = answer(resolved, should_stop)
            return _stored(resolved, body, hardware), body.search
    except (FloatingPointError, OverflowError) as error:
        raise InvalidQuestion(
            "These sizes and rates lie so far apart that no number can hold the answer. Look for a slip in them."
        ) from error


def _stored(resolved: ResolvedQuestion, body: TrainPlanBody | InferPlanBody, hardware: Hardware) -> StoredPlan:
    framework = body.plan.layout.framework if isinstance(body, TrainPlanBody) else body.plan.settings.engine
    return StoredPlan(
        **dataclasses.asdict(resolved.identity),
        kind=resolved.kind,
        request=resolved.request,
        fits=body.fits,
        verdict=body.verdict,
        summary=body.summary,
        model=resolved.model.name,
        gpu=hardware.gpu.id,
        gpus=body.plan.layout.gpus,
        framework=framework,
        model_config=resolved.model.config,
        answer=_finite_json(body),
    )


def _finite_json(body: TrainPlanBody | InferPlanBody) -> str:
    """Return the body as it is sent, with finite numbers alone; raises OverflowError where it cannot do without one."""
    try:
        return body_json(body)
    except OverflowError:
        finite = finite_body(body)
        log.warning("no finite numbers", plan_id=body.plan_id, left_out=[omitted.part for omitted in finite.omitted])
        return body_json(finite)


def stored_bytes(plan: StoredPlan, resolved: ResolvedQuestion) -> int:
    """Return what a plan's row takes, but for what the database adds and saves."""
    return len(plan.answer) + resolved.request_bytes + len(canonical_json(plan.model_config))


def seen_model(model: ResolvedModel) -> SeenModel:
    """Return the row of a model that no catalogue lists."""
    return SeenModel(
        config_hash=digest(model.config), name=model.name, model_type=model.spec.model_type, config=model.config
    )
