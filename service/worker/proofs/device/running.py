"""One rank's training steps for real: its own shards, random data, the device's kernels."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from plimsoll.service.worker.devices.device import Device
from plimsoll.service.worker.jobs.job import PipelineStage, TraceJob
from plimsoll.service.worker.jobs.stack import Stack
from plimsoll.service.worker.processes.child_main import is_out_of_memory
from plimsoll.service.worker.proofs.device.clock import PhaseClock, phase_seconds
from plimsoll.service.worker.proofs.device.replicas import ReducedFirst
from plimsoll.service.worker.recording.curve import largest_owners, phase_at, phase_peaks, thinned_curve
from plimsoll.service.worker.recording.ledger import Kind, Ledger
from plimsoll.service.worker.recording.meters import meter_of
from plimsoll.service.worker.recording.patches import traceable_torch
from plimsoll.service.worker.recording.run_record import Record, described_failure
from plimsoll.service.worker.recording.tracker import FORWARD, OPTIMIZER
from plimsoll.service.worker.tasks import Report
from plimsoll.service.worker.training.rank import Rank, device_mesh, equipped_rank, learning_parameters, sharded_model
from plimsoll.service.worker.training.real_weights import SEED, fill_copies, give_storage
from plimsoll.service.worker.training.step import record_steps, run_step, storage_tracker, training_batch

# Steps timed after those that are recorded, which are slower for it; on a CPU seconds say little of a plan.
TIMED_STEPS = {"cuda": 3, "cpu": 1}
HELD_KINDS = (Kind.PARAMETER, Kind.GRADIENT, Kind.OPTIMIZER_STATE)


def run_rank(
    job: TraceJob, stack: Stack, stage: PipelineStage, device: Device, *, rank: int, report: Report
) -> dict[str, Any]:
    """Return what a rank's steps took; call it within the process group.

    Running out of memory is a result: `out_of_memory` says where, and the peaks are
    those so far.
    """
    record, meter = Record(), meter_of(device)
    gc.freeze()
    with traceable_torch() as clock:
        mesh = device_mesh(job, device.type)
        record.tracker = storage_tracker(job, record.ledger, clock)
        try:
            report(0, 1, "stage", "building and sharding")
            built = _real_rank(job, stack, mesh, stage, device)
            with torch.device(device.type):
                batch = _random_batch(job)
                meter.start()
                is_alone = job.world_size == 1
                record_steps(job, stack, stage, built, record.tracker, batch, report, stops_when_steady=is_alone)
                record.phases = _timed(device, lambda watcher: run_step(0, job, stack, stage, built, watcher, batch))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            record.out_of_memory = described_failure(error, record)
    return {"rank": rank, "stage": stage.number, **meter.reading(record.ledger), **_account(record)}


def _real_rank(job: TraceJob, stack: Stack, mesh: DeviceMesh, stage: PipelineStage, device: Device) -> Rank:
    """Return the rank with its storage on the device; what other ranks hold is never allocated."""
    with torch.device("meta"):
        model = sharded_model(job, stack, mesh, stage)
    give_storage(model, job, device.type)
    with torch.device(device.type):
        rank = equipped_rank(job, stack, model)
    fill_copies(rank.optimizer, job)
    if rank.buckets:
        group = mesh["shard"].get_group()
        rank.optimizer = ReducedFirst(rank.optimizer, learning_parameters(model), rank.buckets, group)
    return rank


def _random_batch(job: TraceJob) -> dict[str, torch.Tensor]:
    torch.manual_seed(SEED)
    batch = training_batch(job)
    for name in ("input_ids", "labels"):
        batch[name].random_(0, job.vocabulary_size)
    return batch


def _timed(device: Device, step: Callable[[PhaseClock], None]) -> dict[str, float]:
    steps = []
    for _ in range(TIMED_STEPS[device.type]):
        clock = PhaseClock(device)
        step(clock)
        steps.append(clock.seconds())
    return phase_seconds(steps)


def _account(record: Record) -> dict[str, Any]:
    ledger, peak = record.ledger, record.ledger.peak()
    step, phase = phase_at(ledger, peak.event)
    return {
        "items": peak.bytes_by_item(),
        "kinds": peak.bytes_by_kind(),
        "held": held_bytes(ledger),
        "kept_for_backward_bytes": kept_bytes(ledger),
        "peak_step": step,
        "peak_phase": phase,
        "phases": phase_peaks(ledger),
        "timeline": thinned_curve(ledger.allocated_curve()),
        "largest_live": largest_owners(peak),
        "phase_seconds": record.phases,
        "out_of_memory": record.out_of_memory,
    }


def held_bytes(ledger: Ledger) -> dict[str, int]:
    """Return the bytes of parameters, gradients and states, padding included, at the peak of the last update."""
    updates = [(start, end) for mark, start, end in ledger.phase_ranges() if mark.phase == OPTIMIZER]
    if not updates:
        return {}
    live = ledger.peak(*updates[-1]).live
    return {kind.value: sum(piece.requested_bytes for piece in live if piece.kind is kind) for kind in HELD_KINDS}


def kept_bytes(ledger: Ledger) -> int:
    """Return the bytes of activations that a step's last forward pass leaves for its backward pass.

    It is the least of all steps: a buffer that another rank is still being sent may outlive one of them by chance.
    """
    last_of_step = {mark.step: end for mark, _, end in ledger.phase_ranges() if mark.phase == FORWARD}
    return min((_activation_bytes(ledger, end) for end in last_of_step.values()), default=0)


def _activation_bytes(ledger: Ledger, event: int) -> int:
    left = ledger.peak(event, event).live  # an empty range peaks at its start
    return sum(piece.requested_bytes for piece in left if piece.kind is Kind.FORWARD_ACTIVATION)
