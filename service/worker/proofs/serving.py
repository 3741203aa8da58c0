"""Levels `trace` and `device` of a serving plan: what one rank held, against the plan's terms."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from plimsoll.planners.ground.units import GIB
from plimsoll.service.ground.errors import NoSuitableDevice
from plimsoll.service.worker.devices.device import ANY, Device, environment, find_device
from plimsoll.service.worker.engines.engine import engines
from plimsoll.service.worker.proofs.device.where import HEADROOM, PROCESS_BYTES
from plimsoll.service.worker.proofs.refusals.served import proved_deployment
from plimsoll.service.worker.proofs.verdict import CONSISTENT, REFUTED, TOLERANCE_FRACTION, relative_error
from plimsoll.service.worker.recording.allocator import replay
from plimsoll.service.worker.recording.curve import largest_owners, phase_at, phase_peaks, thinned_curve
from plimsoll.service.worker.recording.ledger import Kind, Ledger
from plimsoll.service.worker.recording.meters import meter_of
from plimsoll.service.worker.serving.deployment import Deployment
from plimsoll.service.worker.serving.passes import PROFILE, SERVING_STAGES
from plimsoll.service.worker.serving.running import run_passes, trace_passes
from plimsoll.service.worker.tasks import Report

TERMS = ("weights", "kv_cache", "activations")
WEIGHT_KINDS = (Kind.PARAMETER.value, Kind.BUFFER.value)


def trace_serving(request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Return the result of tracing a stored serving plan; raises `NotYetAvailable`, naming it, for what cannot be."""
    started = time.monotonic()
    deployment = proved_deployment(request)
    ledger = trace_passes(deployment, report)
    result = {
        **_result(deployment, ledger, request["plan"], peak_bytes=ledger.peak().allocated_bytes, failure=None),
        "level": "trace",
        "device": "cpu (fake tensors, no data)",
        "notes": serving_notes(deployment),
    }
    result["measured"] |= {
        "reserved_bytes": replay(ledger.events).peak_reserved_bytes,
        "reserved_expandable_segments_bytes": replay(ledger.events, expandable_segments=True).peak_reserved_bytes,
    }
    result["seconds"] = time.monotonic() - started
    report(SERVING_STAGES, SERVING_STAGES, "stage", "done")
    return result


def serve_on_device(request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Return the result of running a stored serving plan's rank on this worker's device.

    Raises `NotYetAvailable`, naming it, for what cannot be run, and NoSuitableDevice
    where the worker has none for it. Too little memory is a result.
    """
    started = time.monotonic()
    deployment = proved_deployment(request)
    wanted = request.get("device") or {}
    device = find_device(
        wanted.get("on", ANY), planned_gpu=request["gpu"], any_gpu_kind=bool(wanted.get("any_gpu_kind"))
    )
    predicted = _predicted(request["plan"])
    _refuse_small_device(device, sum(predicted.values()))
    device.select()
    meter = meter_of(device)
    meter.start()
    record, seconds = run_passes(deployment, device, report)
    reading = meter.reading(record.ledger)
    result = _result(
        deployment,
        record.ledger,
        request["plan"],
        peak_bytes=reading["peak_bytes"],
        failure=record.out_of_memory,
    )
    result["measured"] |= reading
    result |= {
        "level": "device",
        "device": device.name,
        "environment": environment(device),
        "speed": _speed(seconds, request["plan"]),
        "out_of_memory": record.out_of_memory,
        "notes": [*serving_notes(deployment), *_device_notes(device, deployment)],
        "seconds": time.monotonic() - started,
    }
    report(SERVING_STAGES, SERVING_STAGES, "stage", "done")
    return result


def _refuse_small_device(device: Device, planned_bytes: int) -> None:
    needed_bytes = round(planned_bytes * HEADROOM) + (PROCESS_BYTES if device.is_cpu else 0)
    if needed_bytes > device.memory_bytes and not device.is_planned_kind:
        raise NoSuitableDevice(
            f"A rank of the plan needs {needed_bytes / GIB:.2f} GiB with its cache, and this worker's {device.name} "
            f"may use {device.memory_bytes / GIB:.2f}. Plan with a smaller gpu_memory_utilization, or validate it at "
            "level trace.",
            pointer="/level",
        )


def _result(
    deployment: Deployment,
    ledger: Ledger,
    plan: Mapping[str, Any],
    *,
    peak_bytes: int,
    failure: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the measured peak and the ledger's terms beside the plan's, level and device apart."""
    predicted, measured = _predicted(plan), measured_terms(ledger)
    terms = [_term(name, predicted[name], measured[name]) for name in TERMS]
    peak = ledger.peak()
    total = _term("peak", sum(predicted.values()), peak_bytes)
    step, phase = phase_at(ledger, peak.event)
    return {
        "rank": 0,
        "predicted": {"peak_bytes": total["predicted_bytes"], "items": predicted},
        "measured": {
            "peak_bytes": peak_bytes,
            "items": measured,
            "kinds": peak.bytes_by_kind(),
        },
        "relative_error": total["relative_error"] if failure is None else None,
        "terms": terms,
        "tolerance_fraction": TOLERANCE_FRACTION,
        "traced_with": served_with(deployment),
        "verdict": REFUTED if failure is not None else serving_verdict(terms, total),
        "batch": deployment.batch,
        "phases": phase_peaks(ledger),
        "timeline": thinned_curve(ledger.allocated_curve()),
        "peak_phase": phase,
        "peak_step": step,
        "largest_live": largest_owners(peak),
    }


def _predicted(plan: Mapping[str, Any]) -> dict[str, int]:
    items = plan["memory"]["items"]
    return {name: int(items[name]) for name in TERMS}


def measured_terms(ledger: Ledger) -> dict[str, int]:
    """Return weights and cache, and what the profiling pass took above the weights."""
    kinds = ledger.peak().bytes_by_kind()
    weights = sum(kinds.get(kind, 0) for kind in WEIGHT_KINDS)
    profiles = [(start, end) for mark, start, end in ledger.phase_ranges() if mark.phase == PROFILE]
    above = ledger.peak(*profiles[0]).allocated_bytes - weights if profiles else 0
    return {"weights": weights, "kv_cache": kinds.get(Kind.KV_CACHE.value, 0), "activations": above}


def serving_verdict(terms: list[dict[str, Any]], total: Mapping[str, Any]) -> str:
    """Return whether weights, cache and peak are each as planned within the tolerance.

    What the profiling pass takes is judged within the peak, of which it is a part: the
    plan has it from logs of the engine, whose code did not run here.
    """
    judged = [*(term for term in terms if term["name"] != "activations"), total]
    errors = [term["relative_error"] for term in judged]
    agrees = all(error is not None and abs(error) <= TOLERANCE_FRACTION for error in errors)
    return CONSISTENT if agrees else REFUTED


def _term(name: str, predicted_bytes: int, measured_bytes: int) -> dict[str, Any]:
    error: float | None = 0.0 if predicted_bytes == measured_bytes else None
    if measured_bytes:
        error = relative_error(predicted_bytes, measured_bytes)
    return {
        "name": name,
        "predicted_bytes": predicted_bytes,
        "measured_bytes": measured_bytes,
        "relative_error": error,
    }


def _speed(seconds: Mapping[str, float], plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the passes' seconds beside the plan's latencies; None where no request had a place."""
    if not seconds:
        return None
    planned = plan.get("performance") or {}
    return {**seconds, **{f"predicted_{name}": planned.get(name) for name in ("ttft_seconds", "tpot_seconds")}}


def served_with(deployment: Deployment) -> str:
    """Return which code ran in the engine's place."""
    import torch
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[deployment.config["model_type"]]
    version = torch.__version__.partition("+")[0]
    return f"transformers {transformers.__version__} {name} under torch {version}, a block cache of our own"


def serving_notes(deployment: Deployment) -> list[str]:
    """Return what ran in the engine's place, and what did not run."""
    notes = [
        f"{deployment.engine}'s code did not run: transformers' layers, a block cache and a sampler stood in for it.",
        "CUDA graphs, the CUDA context and NCCL's buffers are neither in the measured nor in the predicted bytes.",
        "activations is what the profiling pass took above the weights; prefill and decode ran beside the cache.",
    ]
    if engines()[deployment.engine].note:
        notes.append(engines()[deployment.engine].note)
    if deployment.tensor_parallel > 1:
        notes.append("One tensor-parallel rank ran, with all of its own shards; its collectives moved nothing.")
    if deployment.stage_layers is not None:
        first, last = deployment.stage_layers.start, deployment.stage_layers.stop - 1
        notes.append(f"Of the pipeline the stage that binds ran, layers {first} to {last}.")
    if not deployment.batch:
        notes.append("The cache holds no whole request: there was no prefill and no decode.")
    return notes


def _device_notes(device: Device, deployment: Deployment) -> list[str]:
    notes = []
    if deployment.weights in ("fp8", "int8"):
        notes.append("Narrow matrices are widened one at a time to be multiplied, which the engine's kernels do not.")
    if device.is_cpu:
        notes.append(
            "On a CPU: seconds are this host's, the kernels are the CPU's own, and of the prefill one group ran."
        )
    return notes
