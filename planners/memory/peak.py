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
from planners.memory.job import Job
from planners.memory.nvme import placed
from planners.memory.phases import ALLOCATED_ITEMS, phase_items, phase_names
from planners.memory.runtime import runtime_bytes
from planners.memory.spikes import host_peak_bytes, spikes_of
from planners.memory.stages import StageRows, all_stages, deciding_stages
from planners.plans import Memory, MemoryItems, StageMemory

# Of 19 nanotron runs above 70 of 80 GB the median used 4.9 % of the peak rate, of those at 65 to 70 GB 25.8 %
# (Ultra-Scale Playbook's benchmark chart): beyond this part of the card the allocator thrashes.
NEAR_CAPACITY_FRACTION = 0.88


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakRows:
    """Whole bytes for each row: `items` is [item, row] without runtime and fragmentation.

    `held` and `active` are what the phases were made of.
    """

    rows: StageRows
    held: Holdings
    active: Activity
    items: FloatArray
    phase: IntArray
    fragmentation: FloatArray
    runtime: FloatArray
    host: FloatArray
    nvme: FloatArray

    @property
    def peak_bytes(self) -> FloatArray:
        """Return the sum of all items of each row."""
        total: FloatArray = self.items.sum(axis=0) + self.fragmentation + self.runtime
        return total


def peak_bytes(layouts: Candidates, job: Job) -> FloatArray:
    """Return each layout's peak on its worst stage."""
    account = _account(layouts, _stages(deciding_stages, layouts, job), job)
    peaks = np.zeros(len(layouts))
    np.maximum.at(peaks, account.rows.owner, account.peak_bytes)
    return peaks


def memory_of(layouts: Candidates, index: int, job: Job, hardware: Hardware) -> Memory:
    """Return the full account of one layout, stage by stage."""
    layout = layouts.take([index])
    account = _account(layout, _stages(all_stages, layout, job), job)
    stages = tuple(_stage_memory(account, row, phase_names(job)) for row in range(account.rows.owner.size))
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
    return stages(layouts, job.model, job.global_batch_size, rule=job.profile.can.stage_rule)


def _account(layouts: Candidates, rows: StageRows, job: Job) -> PeakRows:
    held = with_companions(holdings(layouts, rows, job), layouts, rows, job)
    active = activity(layouts, rows, job)
    by_phase = phase_items(layouts, rows, job, held, left_on_device(active, layouts, rows))
    worst = by_phase.sum(axis=1).argmax(axis=0)
    items: FloatArray = np.take_along_axis(by_phase, worst[None, None, :], axis=0)[0]
    elsewhere = placed(held, layouts, rows, job)
    surplus = job.profile.runtime.reserved_over_allocated - 1.0
    return PeakRows(
        rows=rows,
        held=held,
        active=active,
        items=items,
        phase=worst,
        fragmentation=np.ceil(items.sum(axis=0) * surplus),
        runtime=np.ceil(runtime_bytes(layouts, job.profile.runtime))[rows.owner],
        host=np.ceil(elsewhere.host + offloaded_bytes(active, layouts, rows)),
        nvme=np.ceil(elsewhere.nvme),
    )


def _stage_memory(account: PeakRows, row: int, phases: tuple[str, ...]) -> StageMemory:
    values = {name: int(account.items[position, row]) for position, name in enumerate(ALLOCATED_ITEMS)}
    items = MemoryItems(**values, fragmentation=int(account.fragmentation[row]), runtime=int(account.runtime[row]))
    first = int(account.rows.first_layer[row])
    return StageMemory(
        stage=int(account.rows.stage[row]),
        layers=(first, first + int(account.rows.layers[row]) - 1),
        peak_bytes=items.total_bytes,
        phase=phases[int(account.phase[row])],
        items=items,
    )
