"""One rank of a deployment run: on fake tensors, or on a device."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from plimsoll.planners.serving.releases.profile import engine_profile
from plimsoll.service.worker.devices.device import Device
from plimsoll.service.worker.engines.engine import engines
from plimsoll.service.worker.processes.child_main import is_out_of_memory
from plimsoll.service.worker.recording.ledger import Kind, Ledger
from plimsoll.service.worker.recording.patches import StreamClock, traceable_torch
from plimsoll.service.worker.recording.run_record import Record, described_failure
from plimsoll.service.worker.recording.tracker import StorageTracker
from plimsoll.service.worker.serving.cache import BlockCache
from plimsoll.service.worker.serving.deployment import Deployment
from plimsoll.service.worker.serving.engine_kernels import rotating_in_place
from plimsoll.service.worker.serving.latent_attention import kernels_workspace
from plimsoll.service.worker.serving.model import load_random, rotary_tables, served_model
from plimsoll.service.worker.serving.passes import SERVING_STAGES, WEIGHTS, Passes, record_passes
from plimsoll.service.worker.serving.sampling import SORTING_BYTES_PER_LOGIT, Sampler
from plimsoll.service.worker.tasks import Report
from plimsoll.service.worker.training.rank import process_group_of

TIMED_DECODES = {"cuda": 5, "cpu": 1}


def trace_passes(deployment: Deployment, report: Report) -> Ledger:
    """Return what loading, profiling, the cache, prefill and decode do to memory, on fake tensors."""
    record = Record()
    with _ranks(deployment) as (group, clock), FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        report(0, SERVING_STAGES, "stage", "building")
        cache = BlockCache(deployment)
        model = served_model(deployment, group, cache, by_shape=True)
        tables = rotary_tables(deployment, model, "cpu")
        workspace = kernels_workspace(deployment, cache, "cpu")
        passes = Passes(deployment, model, cache, "cpu", engine_sampler(deployment))
        tracker = _tracker(deployment, record, clock)
        _label_weights(tracker, model, tables, workspace)
        with tracker.watching(), _kernels(deployment, model):
            passes.make_workspace()
            record_passes(passes, tracker, deployment, report, whole=False)
    return record.ledger


def run_passes(deployment: Deployment, device: Device, report: Report) -> tuple[Record, dict[str, float]]:
    """Run the same on a device with random weights; return what is known of it, and seconds.

    Running out of memory is a result, and stands in the record.
    """
    record = Record()
    seconds: dict[str, float] = {}
    with _ranks(deployment) as (group, clock), torch.no_grad():
        tracker = _tracker(deployment, record, clock)
        record.tracker = tracker
        try:
            report(0, SERVING_STAGES, "stage", "loading random weights")
            cache = BlockCache(deployment)
            with torch.device("meta"):
                model = served_model(deployment, group, cache, by_shape=False)
            load_random(model, device.type)
            tables = rotary_tables(deployment, model, device.type)
            workspace = kernels_workspace(deployment, cache, device.type)
            passes = Passes(deployment, model, cache, device.type, engine_sampler(deployment))
            _label_weights(tracker, model, tables, workspace)
            with tracker.watching():
                record_passes(passes, tracker, deployment, report, whole=not device.is_cpu)
            if deployment.batch:
                seconds = _timed(passes, device)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            record.out_of_memory = described_failure(error, record)
    return record, seconds


def engine_sampler(deployment: Deployment) -> Sampler:
    """Return the sampler of the engine's version."""
    profile = engine_profile(deployment.engine, deployment.engine_version)
    sorts = profile.sampler_bytes_per_logit > SORTING_BYTES_PER_LOGIT
    return Sampler(sorts=sorts, scratch_rows=profile.sampler_scratch_rows)


def _kernels(deployment: Deployment, model: Any) -> contextlib.AbstractContextManager[None]:
    """Let what works in place in the engine do so on fake tensors."""
    return rotating_in_place(model) if engines()[deployment.engine].has_own_kernels else contextlib.nullcontext()


@contextlib.contextmanager
def _ranks(deployment: Deployment) -> Iterator[tuple[dist.ProcessGroup | None, StreamClock]]:
    """Give the group of the tensor-parallel ranks (None for one alone), of which this is the first."""
    with traceable_torch() as clock:
        if deployment.tensor_parallel == 1:
            yield None, clock
            return
        with process_group_of(deployment.tensor_parallel):
            yield dist.group.WORLD, clock


def _tracker(deployment: Deployment, record: Record, clock: StreamClock) -> StorageTracker:
    shapes = {(rows, deployment.vocabulary_size) for rows in (deployment.sampled_rows, deployment.batch)}
    return StorageTracker(record.ledger, clock, logit_shapes=frozenset(shapes))


def _label_weights(
    tracker: StorageTracker, model: Any, tables: list[torch.Tensor], workspace: list[torch.Tensor]
) -> None:
    tracker.ledger.mark(0, WEIGHTS)
    tracker.label_all(model.named_parameters(), Kind.PARAMETER)
    tracker.label_all(model.named_buffers(), Kind.BUFFER)
    for table in tables:
        tracker.label(table, Kind.BUFFER, "cosines and sines of every position")
    for piece in workspace:
        tracker.label(piece, Kind.BUFFER, "workspace of kernels for latents")


def _timed(passes: Passes, device: Device) -> dict[str, float]:
    """Return the seconds of one group's prefill and of a decode step, the collectives of other ranks apart."""
    prefill = _seconds(device, lambda: passes.prefill(first_groups=1))
    decode = statistics.median(_seconds(device, passes.decode) for _ in range(TIMED_DECODES[device.type]))
    return {"prefill_group_seconds": prefill, "decode_step_seconds": decode}


def _seconds(device: Device, work: Any) -> float:
    device.synchronize()
    began = time.perf_counter()
    work()
    device.synchronize()
    return time.perf_counter() - began
