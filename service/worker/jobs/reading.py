"""The job to prove, read from a stored plan and the request that it answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.terms import ONE_FORWARD_ONE_BACKWARD, REFERENCE
from plimsoll.planners.plans import HiddenTraffic
from plimsoll.planners.questions import Companion, Evaluation, Lora
from plimsoll.service.worker.jobs.job import PipelineStage, TraceJob


def read_job(request: Mapping[str, Any]) -> TraceJob:
    """Return the job of a validation request.

    Raises `InvalidQuestion` for a request that lacks its parts.
    """
    try:
        training, layout = request["request"]["training"], request["plan"]["layout"]
        model = request["model"]
        return TraceJob(
            model_name=model["name"],
            config=model["config"],
            framework=layout["framework"],
            sequence_length=training["sequence_length"],
            micro_batch_size=layout["micro_batch_size"],
            accumulation_steps=layout["gradient_accumulation_steps"],
            precision=training.get("precision", "bf16-mixed"),
            optimizer=training.get("optimizer", "adamw"),
            gradient_dtype=training.get("gradient_dtype"),
            attention=training.get("attention") or "flash",
            kernels=training.get("kernels"),
            multi_token_prediction=training.get("multi_token_prediction") or 0,
            recompute=layout["recompute"],
            recompute_layers=layout.get("recompute_layers"),
            fused_cross_entropy=bool(layout.get("fused_cross_entropy", False)),
            data_parallel=layout["data_parallel"],
            tensor_parallel=layout["tensor_parallel"],
            pipeline_parallel=layout["pipeline_parallel"],
            sequence_parallel=layout["sequence_parallel"],
            zero_stage=layout["zero_stage"],
            shard_group=layout["shard_group"],
            secondary_shard_group=layout.get("secondary_shard_group", 1),
            virtual_pipeline=layout.get("virtual_pipeline", 1),
            context_parallel=layout.get("context_parallel", 1),
            context_all_to_all=layout.get("context_all_to_all", 1),
            expert_parallel=layout.get("expert_parallel", 1),
            offload=layout.get("offload", "none"),
            offload_target=layout.get("offload_target", "cpu"),
            pipeline_schedule=layout.get("pipeline_schedule", ONE_FORWARD_ONE_BACKWARD),
            pipeline_layout=layout.get("pipeline_layout"),
            activation_offload=bool(layout.get("activation_offload", False)),
            offload_modules=tuple(layout.get("offload_modules") or ()),
            offload_layers=layout.get("offload_layers"),
            recompute_every=_recomputed_every(training.get("recompute")),
            recompute_modules=tuple(layout.get("recompute_modules") or _asked_modules(training.get("recompute"))),
            stages=_stages(request["plan"]["memory"], layout["pipeline_parallel"]),
            method=training.get("method", "full"),
            lora=_lora(training.get("lora")),
            reference=_reference(training.get("companions")),
            evaluation=Evaluation(**training["evaluation"]) if training.get("evaluation") else None,
            overlap=HiddenTraffic(**layout["overlap"]) if layout.get("overlap") else None,
            asks_tensor_overlap=_asks_tensor_overlap(request["request"].get("layout")),
        )
    except KeyError as missing:
        raise InvalidQuestion(f"The plan to validate lacks {missing}.") from missing


def _stages(memory: Mapping[str, Any], pipeline_parallel: int) -> tuple[PipelineStage, ...]:
    """Return the stages as the plan cut them; a plan without a pipeline needs none."""
    if pipeline_parallel == 1:
        return ()
    return tuple(
        PipelineStage(
            number=part["stage"],
            stages=pipeline_parallel,
            first_layer=part["layers"][0],
            last_layer=part["layers"][1],
            planned_bytes=int(part["peak_bytes"]),
        )
        for part in memory["stages"]
    )


def _recomputed_every(asked: Any) -> int | None:
    """Return the layers of which a request has one computed again; a mode's name alone names none."""
    return asked.get("every") if isinstance(asked, dict) else None


def _asked_modules(asked: Any) -> Sequence[str]:
    """Return the parts of layers that a request names, for plans of versions whose layouts name none."""
    return asked.get("modules", ()) if isinstance(asked, dict) else ()


def _asks_tensor_overlap(part: Mapping[str, Any] | None) -> bool:
    """Return whether a request's layout names tensor-parallel traffic as hidden."""
    return bool(((part or {}).get("overlap") or {}).get("tensor_parallel"))


def _reference(companions: Sequence[Mapping[str, Any]] | None) -> str | None:
    """Return the format of the first reference among the models beside the one that learns."""
    formats = (
        each.get("precision", Companion(role=REFERENCE).precision)
        for each in companions or ()
        if each["role"] == REFERENCE
    )
    return next(formats, None)


def _lora(part: Mapping[str, Any] | None) -> Lora:
    if part is None:
        return Lora()
    targets = part["target_modules"]
    return Lora(
        rank=part["rank"],
        target_modules=(targets,) if isinstance(targets, str) else tuple(targets),
        double_quantization=part["double_quantization"],
        dropout=part.get("dropout"),
    )
