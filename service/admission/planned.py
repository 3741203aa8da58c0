"""A workload held against the stored plan that its annotation names: GPUs, their kind, the layout and the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from plimsoll.planners.catalogue import Catalogue
from plimsoll.planners.ground.errors import UnknownModel
from plimsoll.service.admission.findings import Finding
from plimsoll.service.admission.judgement import is_certain_for_serving, is_certain_for_training
from plimsoll.service.admission.lanes import Lane
from plimsoll.service.persistence.records import StoredPlan
from plimsoll.service.plans.stored_bodies import plan_body
from plimsoll.service.workloads.commands.launches import Launch

# What a command and a plan both say of how one job or replica is divided.
DEGREES = ("tensor_parallel", "pipeline_parallel", "context_parallel", "attention_data_parallel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What of a stored plan a workload is held against; `gpus` are one job's or one replica's."""

    plan_id: str
    gpus: int
    replicas: int
    gpu: str
    model: str
    layout: Mapping[str, int]
    weight: Literal["refuse", "warn", "fits"]
    summary: str


def read_planned(stored: StoredPlan) -> Planned:
    """Return what matters of a stored plan."""
    plan = plan_body(stored)["plan"]
    layout = plan["layout"]
    replicas = layout["data_parallel"] if stored.kind == "infer" else 1
    return Planned(
        plan_id=stored.plan_id,
        gpus=stored.gpus // replicas,
        replicas=replicas,
        gpu=stored.gpu,
        model=stored.model,
        layout={name: layout[name] for name in DEGREES if name in layout},
        weight=_weight(stored, plan),
        summary=stored.summary,
    )


def planned_finding(planned: Planned, lane: Lane, replicas: int | None, catalogue: Catalogue) -> Finding:
    """Return how a workload compares with its plan; whatever differs refuses it, but for the number of replicas."""
    launches = [launch for launch in lane.launches() if isinstance(launch, Launch)]
    spans_pods = any(launch.spans_pods for launch in launches)
    differences = [
        *_of_gpus(planned, lane, spans_pods=spans_pods),
        *(text for launch in launches for text in _of(planned, launch, catalogue)),
    ]
    if differences:
        return Finding(weight="refuse", text=f"Plan {planned.plan_id} {'; '.join(differences)}.")
    if replicas is not None and replicas != planned.replicas and planned.weight == "fits":
        counted = f"counts {planned.replicas} replicas, the workload has {replicas}: what it serves at once differs."
        return Finding(weight="warn", text=f"Plan {planned.plan_id} {counted}")
    return Finding(weight=planned.weight, text=f"Plan {planned.plan_id}: {planned.summary}")


def _of_gpus(planned: Planned, lane: Lane, *, spans_pods: bool) -> Iterator[str]:
    demand = lane.demand
    if demand.mig_profile or demand.partition:
        yield f"is for whole GPUs, the workload asks for slices ({demand.mig_profile or demand.partition})"
    # One of several objects that make a replica together has a share of its GPUs.
    is_a_share = spans_pods and planned.gpus % lane.gpus == 0
    if lane.gpus != planned.gpus and not is_a_share:
        each = " a replica" if planned.replicas > 1 else ""
        yield f"is for {planned.gpus} GPUs{each}, the workload asks for {lane.gpus}"
    if demand.gpu is not None and demand.gpu != planned.gpu:
        yield f"is for {planned.gpu}, the workload selects {demand.gpu}"


def _of(planned: Planned, launch: Launch, catalogue: Catalogue) -> Iterator[str]:
    layout = dict(launch.request["layout"])
    if launch.kind == "infer":
        # vLLM calls replicas of a dense model and of attention alone by one name; one command is one replica here.
        layout["attention_data_parallel"] = layout.get("attention_data_parallel", 1) * layout.get("data_parallel", 1)
    for name, degree in planned.layout.items():
        if layout.get(name, 1) != degree:
            yield f"has {name} {degree}, the command {layout.get(name, 1)}"
    model = launch.request["model"]
    if isinstance(model, str) and _is_another(model, planned.model, catalogue):
        yield f"is for {planned.model}, the command names {model[:80]}"


def _is_another(named: str, planned: str, catalogue: Catalogue) -> bool:
    """Return whether the catalogue knows both names, as different models; a path may hold anything."""
    try:
        return catalogue.model(named).id != catalogue.model(planned).id
    except UnknownModel:
        return False


def _weight(stored: StoredPlan, plan: Mapping[str, Any]) -> Literal["refuse", "warn", "fits"]:
    if stored.verdict == "fits":
        return "fits"
    if stored.fits:
        return "warn"
    if stored.kind == "train":
        memory = plan["memory"]
        is_certain = is_certain_for_training(memory["peak_low_bytes"], memory["limit_bytes"])
    else:
        kv = plan["kv"]
        engine = plan["settings"]["engine"]
        is_certain = is_certain_for_serving(
            engine, kv["max_concurrency"], kv["available_bytes"], kv["available_high_bytes"]
        )
    return "refuse" if is_certain else "warn"
