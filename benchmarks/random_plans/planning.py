"""A stored request planned again, by the service's own reading of it; nothing here loads torch."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.terms import OFFLOADS, RECOMPUTE_MODES
from plimsoll.planners.jobs.pipeline_layouts import BEHIND_FIRST
from plimsoll.planners.layouts.candidates import ALL_LAYERS, Candidates, candidates_from_rows
from plimsoll.planners.memory.peak import memory_of
from plimsoll.planners.plans import Layout, Memory, StageMemory
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.search.able import jobs_of
from plimsoll.planners.training.planning import best_layout
from plimsoll.service.catalogue.gpus import resolve_fleet
from plimsoll.service.ground.settings import Settings
from plimsoll.service.models.resolving import ModelResolver, ResolvedModel
from plimsoll.service.plans.questions import asked_parts
from plimsoll.service.requests.training import TrainRequest

# What a layout and a row of candidates both have, by the same name and in the same form.
SAME_FIELDS = (
    "data_parallel", "tensor_parallel", "pipeline_parallel", "virtual_pipeline", "context_parallel", "expert_parallel",
    "sequence_parallel", "zero_stage", "shard_group", "micro_batch_size", "fused_cross_entropy", "activation_offload",
)  # fmt: skip
# Stacks that were planned so when plans were stored that do not say it.
DIVIDED_BEHIND_THE_FIRST = frozenset({"fsdp2", "megatron-deepspeed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request as the service reads it: the planner's question, and what a proof is told of the request."""

    question: TrainingQuestion
    model: ResolvedModel
    parts: Mapping[str, Any]


@functools.cache
def _models() -> ModelResolver:
    return ModelResolver(catalogue(), Settings())


def read_request(body: Mapping[str, Any]) -> Asked:
    """Return a request as the service reads it; raises what the service would."""
    request = TrainRequest.model_validate(body)
    model = _models().resolve(request.model)
    (hardware,) = resolve_fleet(request.hardware, catalogue())
    parts = {name: part for name, part in asked_parts(request).items() if name != "model"}
    return Asked(question=request.to_question(model.spec, hardware), model=model, parts=parts)


def chosen_layout(asked: Asked) -> Layout:
    """Return the layout that the planner answers with; raises what the planner would."""
    return best_layout(asked.question).layout


def planned_memory(asked: Asked, layout: Layout) -> Memory:
    """Return the account of a layout as a plan has it.

    Layouts that were stored before they said how a pipeline is divided have what is left over behind the first stage.
    """
    way = layout.pipeline_layout or (BEHIND_FIRST if layout.framework in DIVIDED_BEHIND_THE_FIRST else None)
    question = asked.question
    if layout.pipeline_parallel > 1 and way is not None:
        question = dataclasses.replace(question, layout=dataclasses.replace(question.layout, pipeline_layout=way))
    (job,) = jobs_of(question)
    return memory_of(_candidates(layout), 0, job, asked.question.hardware)


def _candidates(layout: Layout) -> Candidates:
    row = {name: getattr(layout, name) for name in SAME_FIELDS}
    row["offload"] = OFFLOADS.index(layout.offload)
    row["recompute"] = RECOMPUTE_MODES.index(layout.recompute)
    row["full_layers"] = ALL_LAYERS if layout.recompute_layers is None else layout.recompute_layers
    return candidates_from_rows([row])


def proof_request(asked: Asked, layout: Layout, memory: Memory) -> dict[str, Any]:
    """Return what a worker is told to trace the plan, as `service/jobs/validations.py` tells it."""
    return {
        "level": "trace",
        "kind": "train",
        "model": {"name": asked.model.name, "config": dict(asked.model.config)},
        "request": dict(asked.parts),
        "plan": {"layout": dataclasses.asdict(layout), "memory": dataclasses.asdict(memory)},
    }


def allocated_bytes(stage: StageMemory) -> int:
    """Return the live tensors of a stage at its worst, as a trace counts them."""
    items = stage.items
    return items.total_bytes - items.runtime - items.fragmentation
