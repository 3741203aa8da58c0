"""Front of the memory planner: the peak of every layout, and the full account of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planners.hardware import Hardware
from planners.layout.candidates import Candidates, FloatArray, IntArray
from planners.memory.activation_offload import left_on_device, offloaded_bytes
from planners.memory.activity import Activity, activity
from planners.memory.companions import with_companions
from planners.memory.holdings import Holdings, holdings
from planners.memory.items import ALLOCATED_ITEMS, PHASES
from planners.memory.job import Job
from planners.memory.moments import StackedMoments, moments_of, stacked_moments
from planners.memory.nvme import placed
from planners.memory.phases import forward_begins, phase_items
from planners.memory.run_ahead import run_ahead_bytes
from planners.memory.runtime import runtime_bytes
from planners.memory.spikes import host_peak_bytes, spikes_of
from planners.memory.stages import StageRows, all_stages, deciding_stages
from planners.plans import Memory, MemoryItems, StageMemory

# Of 19 nanotron runs above 70 of 80 GB the median used 4.9 % of the peak rate, of those at 65 to 70 GB 25.8 %
# (Ultra-Scale Playbook's benchmark chart): beyond this part of the card the allocator thrashes.
NEAR_CAPACITY_FRACTION = 0.88


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Whole bytes of every stage of one layout: `items` is [item, stage] without runtime and fragmentation.

    `moments` are all of them, and `held` and `active` what the phases were made of.
    """

    rows: StageRows
    held: Holdings
    active: Activity
    moments: StackedMoments
    items: FloatArray
    phase: IntArray
    fragmentation: FloatArray
    runtime: FloatArray
    host: FloatArray
    nvme: FloatArray


def peak_bytes(layouts: Candidates, job: Job) -> FloatArray:
    """Return each layout's peak on its worst stage, in the layouts' shape."""
    rows = _stages(deciding_stages, layouts, job)
    held = with_companions(holdings(layouts, rows, job), layouts, job)
    active = left_on_device(activity(layouts, rows, job), layouts)
    # Two arrays of the whole size, filled again and again: new ones each time would cost more than the sums.
    worst = np.zeros((rows.stage.shape[0], *layouts.shape))
    total = np.empty_like(worst)
    for items in phase_items(layouts, rows, job, held, active):
        for states, work in items.sums(axes=worst.ndim):
            np.add(states, work, out=total)
            np.maximum(worst, total, out=worst)
    allocated: FloatArray = worst.max(axis=0)
    # The runtime is the same on every stage, and fragmentation never less for more that is allocated.
    runtime = _runtime(layouts, job)
    peaks: FloatArray = allocated + _fragmentation(allocated, job) + runtime
    if job.profile.run_ahead is not None:
        held_back = worst + _fragmentation(worst, job) + runtime + np.ceil(run_ahead_bytes(layouts, rows, job))
        piled_up: FloatArray = held_back.max(axis=0)
        peaks = np.where(piled_up <= job.limit_bytes, piled_up, peaks)
    return np.broadcast_to(peaks, layouts.shape)


def memory_of(layouts: Candidates, index: int, job: Job, hardware: Hardware) -> Memory:
    """Return the full account of one layout, stage by stage."""
    layout = layouts.take([index])
    account = _account(layout, job)
    stages = tuple(_stage_memory(account, row) for row in range(account.phase.size))
    worst = max(stages, key=lambda stage: stage.peak_bytes)
    items = worst.items
    limit = hardware.limit_bytes
    reserved = items.total_bytes - items.runtime
    band = job.profile.band
    spikes = spikes_of(layout, account.rows, worst.stage, job, account.held, account.active, hardware)
    return Memory(
        peak_bytes=worst.peak_bytes,
        peak_low_bytes=int(worst.peak_bytes * band.low),
        peak_high_bytes=int(worst.peak_bytes * band.high),
        limit_bytes=limit,
        margin_bytes=limit - worst.peak_bytes,
        host_bytes=host_peak_bytes(account.host[worst.stage], spikes),
        nvme_bytes=int(account.nvme[worst.stage]),
        allocated_bytes=reserved - items.fragmentation,
        reserved_bytes=reserved,
        phase=worst.phase,
        items=items,
        spikes=spikes,
        stages=stages,
    )


def verdicts(peaks: FloatArray, job: Job, hardware: Hardware) -> FloatArray:
    """Return 2 where a layout fits, 1 where it is tight, 0 where it does not fit."""
    limit = hardware.limit_bytes
    near = peaks + hardware.used_bytes > NEAR_CAPACITY_FRACTION * hardware.gpu.memory_bytes
    is_tight = near | (peaks * job.profile.band.high > limit)
    return np.where(peaks > limit, 0.0, np.where(is_tight, 1.0, 2.0))


VERDICT_NAMES = ("no", "tight", "fits")


def _stages(stages: Callable[..., StageRows], layouts: Candidates, job: Job) -> StageRows:
    return stages(
        layouts, job.model, job.global_batch_size, rule=job.profile.can.stage_rule, schedule=job.pipeline_schedule
    )


def _fragmentation(allocated_bytes: FloatArray, job: Job) -> FloatArray:
    runtime = job.profile.runtime
    fragmented: FloatArray = np.ceil(
        allocated_bytes * (runtime.reserved_over_allocated - 1.0) + runtime.reserved_slack_bytes
    )
    return fragmented


def _runtime(layouts: Candidates, job: Job) -> FloatArray:
    runtime: FloatArray = np.ceil(runtime_bytes(layouts, job.profile.runtime))
    return runtime


def _account(layout: Candidates, job: Job) -> Account:
    """Return every stage's worst moment of the one layout; of equals the earlier."""
    rows = _stages(all_stages, layout, job)
    shape = rows.stage.shape
    held = with_companions(holdings(layout, rows, job), layout, job)
    active = activity(layout, rows, job)
    on_device = left_on_device(active, layout)
    phases = [*phase_items(layout, rows, job, held, on_device), forward_begins(layout, rows, job, held, on_device)]
    moments = stacked_moments(phases, shape)
    worst = moments.items.sum(axis=1).argmax(axis=0)
    items: FloatArray = np.take_along_axis(moments.items, worst[None, None, :], axis=0)[0]
    fragmentation, runtime = _fragmentation(items.sum(axis=0), job), np.broadcast_to(_runtime(layout, job), worst.shape)
    piled_up = np.broadcast_to(np.ceil(run_ahead_bytes(layout, rows, job)), shape)[:, 0]
    if (items.sum(axis=0) + fragmentation + runtime + piled_up).max() <= job.limit_bytes:
        fragmentation = fragmentation + piled_up
    elsewhere = placed(held, layout, job)
    host = np.ceil(elsewhere.host + offloaded_bytes(active, layout, rows))
    return Account(
        rows=rows,
        held=held,
        active=active,
        moments=moments,
        items=items,
        phase=moments.phase[worst],
        fragmentation=fragmentation,
        runtime=runtime,
        host=np.broadcast_to(host, shape)[:, 0],
        nvme=np.broadcast_to(np.ceil(elsewhere.nvme), shape)[:, 0],
    )


def _stage_memory(account: Account, row: int) -> StageMemory:
    values = {name: int(account.items[position, row]) for position, name in enumerate(ALLOCATED_ITEMS)}
    items = MemoryItems(**values, fragmentation=int(account.fragmentation[row]), runtime=int(account.runtime[row]))
    first = int(account.rows.first_layer[row, 0])
    return StageMemory(
        stage=int(account.rows.stage[row, 0]),
        layers=(first, first + int(account.rows.layers[row, 0]) - 1),
        peak_bytes=items.total_bytes,
        phase=PHASES[int(account.phase[row])],
        items=items,
        moments=moments_of(account.moments, row, first),
    )
