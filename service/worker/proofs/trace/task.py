"""Level `trace`: one rank's training steps on fake tensors, against the plan."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.service.worker.jobs.job import FP8_MIXED, PipelineStage, TraceJob
from plimsoll.service.worker.jobs.stack import Stack
from plimsoll.service.worker.jobs.states import has_own_experts, is_fully_sharded, runs_own_code
from plimsoll.service.worker.proofs.refusals.every import proved_job
from plimsoll.service.worker.proofs.trace.host_account import host_notes, planned_host_bytes, traced_host_bytes
from plimsoll.service.worker.proofs.trace.layer_sampling import trace_stage
from plimsoll.service.worker.proofs.verdict import TOLERANCE_FRACTION, relative_error, verdict
from plimsoll.service.worker.recording.allocator import replay
from plimsoll.service.worker.recording.curve import largest_owners, phase_at, phase_peaks, thinned_curve
from plimsoll.service.worker.recording.ledger import ITEMS, Ledger
from plimsoll.service.worker.training.parallel.pipeline import schedule_note
from plimsoll.service.worker.training.step import MOST_TRACED_MICRO_BATCHES, TRACE_STAGES, Report


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTrace:
    """What one pipeline stage's first rank did; FSDP2's first rank holds the largest shard.

    `sampled_layers` are the depths that the ledger was grown from, none where every layer was traced;
    `samples_differed` says that those were tried and did not agree.
    """

    stage: PipelineStage
    ledger: Ledger
    sampled_layers: tuple[int, ...] = ()
    samples_differed: bool = False


def trace_plan(request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Return the result of tracing a stored training plan.

    Raises `NotYetAvailable`, naming it, for what cannot be traced.
    """
    started = time.monotonic()
    job, stack = proved_job(request)
    traces = [
        _traced_stage(job, stack, stage, _stage_report(report, job, index))
        for index, stage in enumerate(job.deciding_stages)
    ]
    total = TRACE_STAGES * len(traces)
    report(total - 1, total, "stage", "replaying the allocations")
    result = traced_result(job, stack, traces, request["plan"]["memory"])
    result["seconds"] = time.monotonic() - started
    report(total, total, "stage", "done")
    return result


def _traced_stage(job: TraceJob, stack: Stack, stage: PipelineStage, report: Report) -> StageTrace:
    traced = trace_stage(job, stack, report, stage)
    return StageTrace(
        stage=stage,
        ledger=traced.ledger,
        sampled_layers=traced.sampled_layers,
        samples_differed=traced.samples_differed,
    )


def _stage_report(report: Report, job: TraceJob, index: int) -> Report:
    """Return a report that counts on from the stages before, and names the stage where there are several."""
    stages = job.deciding_stages
    prefix = f"stage {stages[index].number}: " if len(stages) > 1 else ""

    def shifted(done: int, total: int, unit: str, message: str) -> None:
        report(index * total + done, len(stages) * total, unit, prefix + message)

    return shifted


def traced_result(job: TraceJob, stack: Stack, traces: list[StageTrace], memory: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the worst stage's ledger shows, beside what the plan's `memory` predicted.

    Both are the allocator's live bytes; the reserved ones come from the replay.
    """
    worst = max(traces, key=lambda trace: trace.ledger.peak().allocated_bytes)
    ledger = worst.ledger
    peak = ledger.peak()
    predicted_bytes = int(memory["allocated_bytes"])
    fixed, expandable = replay(ledger.events), replay(ledger.events, expandable_segments=True)
    step, phase = phase_at(ledger, peak.event)
    items = peak.bytes_by_item()
    return {
        "level": "trace",
        "rank": worst.stage.number * job.data_parallel * job.context_parallel * job.tensor_parallel,
        "predicted": {
            "peak_bytes": predicted_bytes,
            "items": {name: int(memory["items"].get(name, 0)) for name in ITEMS},
            **planned_host_bytes(job, memory),
        },
        "measured": {
            "peak_bytes": peak.allocated_bytes,
            "reserved_bytes": fixed.peak_reserved_bytes,
            "reserved_expandable_segments_bytes": expandable.peak_reserved_bytes,
            "items": items,
            "kinds": peak.bytes_by_kind(),
            **traced_host_bytes(job, [trace.ledger for trace in traces]),
        },
        "relative_error": relative_error(predicted_bytes, peak.allocated_bytes),
        "tolerance_fraction": TOLERANCE_FRACTION,
        "device": "cpu (fake tensors, no data)",
        "traced_with": traced_with(job, stack),
        "verdict": verdict(
            predicted_bytes=predicted_bytes,
            measured_bytes=peak.allocated_bytes,
            ran_own_code=runs_own_code(job, stack),
            runtime_bytes=int(memory["items"].get("runtime", 0)),
            planned_peak_bytes=int(memory["peak_bytes"]),
            limit_bytes=int(memory["limit_bytes"]),
        ),
        "stages": [_stage(trace) for trace in traces],
        "phases": phase_peaks(ledger),
        "timeline": thinned_curve(ledger.allocated_curve()),
        "peak_phase": phase,
        "peak_step": step,
        "largest_live": largest_owners(peak),
        "sampled_layers": list(worst.sampled_layers),
        "extrapolated": any(trace.sampled_layers for trace in traces),
        "notes": trace_notes(job, stack) + host_notes(job) + sampling_notes(traces),
    }


def traced_with(job: TraceJob, stack: Stack) -> str:
    """Return which code ran: package versions, model class and how it was sharded."""
    import torch
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    model_class = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[job.config["model_type"]]
    version = torch.__version__.partition("+")[0]
    sharding = "FSDP2" if is_fully_sharded(job, stack) else "replicated parameters"
    if stack.has_own_engine:
        sharding = f"and a stand-in for {stack.program}'s ZeRO stage {job.zero_stage}"
    tensor = " and DTensor tensor parallelism" if job.tensor_parallel > 1 else ""
    return f"transformers {transformers.__version__} {model_class} under torch {version} {sharding}{tensor}"


def trace_notes(job: TraceJob, stack: Stack) -> list[str]:
    """Return what the trace leaves out and what stands in for what."""
    notes = [
        "Not in the trace: the CUDA context, cuBLAS workspaces, NCCL's communicators and memory inside kernels.",
        "reserved_bytes replays the allocations through a model of torch's caching allocator.",
        "Gradient clipping and checkpoint writing are not run.",
        "Steps are traced until one leaves the memory as it found it: the second, and a third at most.",
    ]
    if not runs_own_code(job, stack):
        notes.append(
            f"transformers' model and torch's sharding stand in for {job.framework}'s own code, which did not run."
        )
    if stack.has_own_engine:
        notes.append(stack.notes.engine)
    if job.trains_adapters:
        notes.append("Adapters are our own layers with peft's tensors: an fp32 pair beside each targeted matrix.")
    if job.method == "qlora":
        notes.append("NF4 weights are held by shape; their scales stand on every rank, as bitsandbytes' do.")
    if stack.has_fused_kernels:
        notes.append(stack.notes.kernels)
    if stack.has_liger_kernels:
        notes.append("Norms, gated activations, rotations and the loss allocate, keep and write over what Liger's do.")
    if job.precision == FP8_MIXED:
        notes.append(
            "Products in fp8 are torchao's Float8Linear, one scale a tensor, gathered in 16 bits, not compiled."
        )
    if job.tracing.has_latent_attention:
        notes.append("Latent attention is torch's memory-efficient kernel: flash takes no values of other lengths.")
    if has_own_experts(job, stack):
        notes.append(stack.notes.experts)
    if job.context_parallel > 1:
        notes.append("Attention is torch's ring: keys and values gathered a layer at a time, halves balanced.")
    if job.pipeline_parallel > 1:
        notes.append(schedule_note(job))
    elif job.accumulation_steps > MOST_TRACED_MICRO_BATCHES:
        notes.append(
            f"{MOST_TRACED_MICRO_BATCHES} of {job.accumulation_steps} micro-batches of each step were traced; "
            "the later ones find the memory as the second did."
        )
    if job.accumulation_steps > 1 and is_fully_sharded(job, stack) and job.pipeline_parallel == 1:
        notes.append("Gradients are reduced after every micro-batch, so that none is kept whole.")
    if not is_fully_sharded(job, stack) and job.data_parallel > 1 and stack.has_gradient_buckets:
        notes.append("DistributedDataParallel's gradient buckets are allocated by its own sizes, and not filled.")
    if job.fused_cross_entropy:
        notes.append("The fused cross-entropy is our own after the Liger kernel's algorithm.")
    return notes


def sampling_notes(traces: list[StageTrace]) -> list[str]:
    """Return which stages were traced by a sample of their layers, and which moment of it rules at the true depth."""
    notes = []
    for trace in traces:
        name = f"Stage {trace.stage.number}" if trace.stage.stages > 1 else "The model"
        if trace.samples_differed:
            notes.append(f"{name} was traced layer by layer: models of fewer layers did not foretell one another.")
        if not trace.sampled_layers:
            continue
        step, phase = phase_at(trace.ledger, trace.ledger.peak().event)
        depths = ", ".join(str(depth) for depth in trace.sampled_layers)
        layers = trace.stage.last_layer - trace.stage.first_layer + 1
        notes.append(
            f"{name} of {layers} layers is extrapolated from models of {depths}: the events that a layer adds are "
            "repeated, and the deepest sample is, event by event, what the others foretell. The peak is searched in "
            f"the whole sequence and lies in step {step + 1}, {phase}. Which of several like pieces a release frees "
            "is by order, which reserved_bytes alone can feel."
        )
    return notes


def _stage(trace: StageTrace) -> dict[str, Any]:
    peak = trace.ledger.peak()
    return {
        "stage": trace.stage.number,
        "layers": [trace.stage.first_layer, trace.stage.last_layer],
        "peak_bytes": peak.allocated_bytes,
        "reserved_bytes": replay(trace.ledger.events).peak_reserved_bytes,
        "items": peak.bytes_by_item(),
        "sampled_layers": list(trace.sampled_layers),
    }
