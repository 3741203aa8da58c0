"""Front of the memory planner: the peak of every layout, and the full account of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from plimsoll.planners.derived import Derived
from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import ALL_LAYERS, BoolArray, Candidates, FloatArray, IntArray, any_of
from plimsoll.planners.layouts.stages import StageRows, deciding_stages, pipeline_of
from plimsoll.planners.memory.activation_offload import left_on_device
from plimsoll.planners.memory.activity import activity
from plimsoll.planners.memory.companions import with_companions
from plimsoll.planners.memory.holdings import states
from plimsoll.planners.memory.host import host_bytes, making_host_bytes, node_host
from plimsoll.planners.memory.nvme import placed
from plimsoll.planners.memory.outside_step import gpus_on_node, loading_host_bytes, spikes_of
from plimsoll.planners.memory.programs.at_rest import others_at_loss
from plimsoll.planners.memory.programs.choice import Prepared, events_of_stages, prepared, stage_peaks
from plimsoll.planners.memory.programs.chunks import goes_round_once
from plimsoll.planners.memory.programs.question import Question, question_of
from plimsoll.planners.memory.programs.stream_pools import PoolPeaks, stream_peaks
from plimsoll.planners.memory.readings import readings
from plimsoll.planners.memory.run_ahead import run_ahead_bytes
from plimsoll.planners.memory.runtime import runtime_bytes, tensor_overlap_bytes
from plimsoll.planners.memory.steps.events import Events
from plimsoll.planners.memory.steps.on_rank import NO_BYTES
from plimsoll.planners.memory.steps.step import ITEMS
from plimsoll.planners.memory.timeline import moments_of
from plimsoll.planners.plans import Memory, MemoryItems, Spike, StageMemory

# Of 19 nanotron runs above 70 of 80 GB the median used 4.9 % of the peak rate, of those at 65 to 70 GB 25.8 %
# (Ultra-Scale Playbook's benchmark chart); whatever slowed them, a plan beyond this part of the card is tight.
NEAR_CAPACITY_FRACTION = 0.88

# UNSURE is a plan for whose states not every node with that GPU has the host memory, and is told as tight.
VERDICT_NAMES = ("no", "tight", "tight", "fits")
NO, UNSURE, TIGHT, FITS = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What layouts need: the peak of a device, in the layouts' shape, and of a node's host, broadcasting against it."""

    peaks: FloatArray
    node_host: FloatArray
    gpus_on_node: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Every stage of one layout: its events, and whole bytes beside what they allocate, by stage.

    `layers` are the numbers of each stage's layers, lowest first. `asked` is what the programs of all layouts were made
    of. `needs` are those of all layouts.
    """

    asked: Question
    layers: tuple[tuple[int, ...], ...]
    events: tuple[Events, ...]
    fragmentation: FloatArray
    expandable: FloatArray
    needed: FloatArray
    runtime: FloatArray
    host: FloatArray
    nvme: FloatArray
    needs: Needs


def peak_bytes(layouts: Candidates, job: Job) -> FloatArray:
    """Return each layout's peak on its worst stage, in the layouts' shape."""
    return needs_of(layouts, job).peaks


def needs_of(layouts: Candidates, job: Job) -> Needs:
    """Return each layout's peak on its worst stage, and what its fullest node's host needs."""
    asked = question_of(layouts, job, deciding_stages)
    host = host_bytes(asked.held, asked.made, layouts, asked.rows, job)
    peaks = np.broadcast_to(_peaks(prepared(asked), layouts, asked.rows, job), layouts.shape)
    return _needs(peaks, host, asked)


def least_bytes(layouts: Candidates, job: Job) -> FloatArray:
    """Return what each layout's worst stage takes at the least, by what every program holds at one of two moments.

    As the loss is known, that is weights and states, what layers keep of micro-batches, and the logits, of interleaved
    stages either of these; where some of unlike layers are recomputed, the micro-batch at work is left out. A pipeline
    that gathers weights once has sums of all gradients as it differentiates its last micro-batch, unless it lets its
    chunks' go one by one.
    """
    rows, weights = deciding_stages(layouts, job), job.profile.weights
    held = with_companions(states(layouts, rows, job), layouts, job)
    active = left_on_device(activity(layouts, rows, job), layouts, job)
    is_known = (layouts.full_layers == ALL_LAYERS) | np.bool_(len(job.layers) == 1)
    others = np.maximum(rows.in_flight - 1.0, 0.0)
    if weights.pipelines_gather_once:
        # Its program has the head's stage at the loss alone, where unlike chunks may have had more waiting before.
        others = others_at_loss(layouts, rows, job, others)
    others = others * active.stage
    kept = others + np.where(is_known, active.stage, 0.0)
    # Of an interleaved pipeline fewer may wait as the loss is known than at the most.
    least = np.where(layouts.virtual_pipeline > 1, np.maximum(kept, active.logits), kept + active.logits)
    if weights.gradients_always_resident:
        least = least + held.gradients
    if weights.pipelines_gather_once:
        goes_on = layouts.micro_batches(job.global_batch_size) > rows.in_flight
        sums = np.where(goes_round_once(layouts, job), 0.0, job.reduce_bytes * held.stage_elements)
        summed = np.maximum(least, sums + np.where(goes_on, others, 0.0))
        gathered = job.precision.compute_bytes * held.stage_elements
        least = np.where(layouts.pipeline_parallel > 1, summed + gathered, least)
    least = least + held.parameters + held.optimizer
    most: FloatArray = np.broadcast_to(least, (rows.stage.shape[0], *layouts.shape)).max(axis=0)
    room = np.floor(job.limit_bytes - _runtime(layouts, job))
    needed = np.maximum(most + _kept_when_short(most, job), room)
    return np.minimum(most + _fragmentation(most, job), needed) + _runtime(layouts, job)


def memory_of(layouts: Candidates, index: int, job: Job, hardware: Hardware) -> Memory:
    """Return the full account of one layout, stage by stage."""
    return memory_and_needs(layouts.take([index]), 0, job, hardware, Derived())[0]


def memory_and_needs(
    layouts: Candidates, index: int, job: Job, hardware: Hardware, derived: Derived
) -> tuple[Memory, Needs]:
    """Return the full account of one layout of a short list, stage by stage, and the needs of all of them.

    Both come of the same arrays, so that a few layouts beside the one cost next to nothing. `derived` works out what
    is told beside the peaks: the curve over a step, and what is held outside of steps.
    """
    account = _account(layouts, index, job)
    stages = tuple(_stage_memory(account, row, index, derived) for row in range(len(account.events)))
    worst_row = max(range(len(stages)), key=lambda row: stages[row].peak_bytes)
    worst = stages[worst_row]
    items = worst.items
    limit = hardware.limit_bytes
    reserved = items.total_bytes - items.runtime
    band = job.profile.band
    host = node_host(account.needs.gpus_on_node, hardware)
    spikes: tuple[Spike, ...] = derived.part(
        "plan.memory.spikes",
        lambda: spikes_of(account.asked, index, worst.stage),
        otherwise=(),
    )
    memory = Memory(
        peak_bytes=worst.peak_bytes,
        peak_low_bytes=int(worst.peak_bytes * band.low),
        peak_high_bytes=int(worst.peak_bytes * band.high),
        limit_bytes=limit,
        margin_bytes=limit - worst.peak_bytes,
        host_bytes=max(int(loading_host_bytes(layouts, job)[index]), int(account.host.max())),
        node_host_bytes=int(account.needs.node_host[index]),
        node_host_sure_bytes=_at(host.sure_bytes, index),
        node_host_limit_bytes=_at(host.most_bytes, index),
        nvme_bytes=int(account.nvme[worst.stage]),
        allocated_bytes=reserved - items.fragmentation,
        reserved_bytes=reserved,
        phase=worst.phase,
        items=items,
        spikes=spikes,
        stages=stages,
        readings=readings(
            job.profile,
            allocated=reserved - items.fragmentation,
            reserved=reserved,
            expandable=int(account.expandable[worst_row]),
            needed=int(account.needed[worst_row]),
            runtime=items.runtime,
        ),
    )
    return memory, account.needs


def verdicts(needs: Needs, job: Job, hardware: Hardware) -> FloatArray:
    """Return each layout's place in `VERDICT_NAMES`: that of the device or, where it is less, that of the host."""
    peaks, limit = needs.peaks, hardware.limit_bytes
    near = peaks + hardware.used_bytes > NEAR_CAPACITY_FRACTION * hardware.gpu.memory_bytes
    is_tight = near | (peaks * job.profile.band.high > limit)
    on_device = np.where(peaks > limit, float(NO), np.where(is_tight, float(TIGHT), float(FITS)))
    host = node_host(needs.gpus_on_node, hardware)
    is_sure, is_there = needs.node_host <= host.sure_bytes, needs.node_host <= host.most_bytes
    return np.minimum(on_device, np.where(is_sure, float(FITS), np.where(is_there, float(UNSURE), float(NO))))


def have_memory(needs: Needs, hardware: Hardware) -> BoolArray:
    """Return which layouts have the memory they need, on the device and on the host; all others do not fit."""
    on_host: BoolArray = needs.node_host <= node_host(needs.gpus_on_node, hardware).most_bytes
    return (needs.peaks <= hardware.limit_bytes) & on_host


def excess(needs: Needs, hardware: Hardware) -> FloatArray:
    """Return how many times what is there each layout needs, of the device times of the host; 1 where it is there."""
    on_host = needs.node_host / node_host(needs.gpus_on_node, hardware).most_bytes
    return np.maximum(needs.peaks / hardware.limit_bytes, 1.0) * np.maximum(on_host, 1.0)


def _needs(peaks: FloatArray, host: FloatArray, asked: Question) -> Needs:
    """Return the needs of layouts whose stages, the first axis, keep so much on the host for each of their GPUs."""
    gpus = gpus_on_node(asked.layouts, asked.job)
    host = host + making_host_bytes(asked.held, asked.layouts, asked.job)
    # A node is taken to hold the fullest stage alone, as it does where a stage has as many GPUs as a node.
    return Needs(peaks=peaks, node_host=gpus * host.max(axis=0), gpus_on_node=gpus)


def _peaks(programs: Sequence[Prepared], layouts: Candidates, rows: StageRows, job: Job) -> FloatArray:
    """Return the peaks of layouts whose stages, the first axis, go through programs."""
    runtime, pools = _runtime(layouts, job), stream_peaks(programs, job)
    if job.profile.run_ahead is not None or pools.others is not NO_BYTES:
        reserved: FloatArray = _reserved(pools, programs, layouts, rows, job).max(axis=0) + runtime
        return reserved
    most: FloatArray = np.broadcast_to(pools.main, (rows.stage.shape[0], *layouts.shape)).max(axis=0)
    # Fragmentation is never less for more that is allocated.
    return _in_room(most + _fragmentation(most, job), most, np.floor(job.limit_bytes - runtime), job) + runtime


def _reserved(
    pools: PoolPeaks, programs: Sequence[Prepared], layouts: Candidates, rows: StageRows, job: Job
) -> FloatArray:
    """Return what every stage reserves; buffers pile up, and pools keep what is free, only where they leave room."""
    shape = (rows.stage.shape[0], *layouts.shape)
    reserved = np.broadcast_to(pools.main + _fragmentation(pools.main, job) + pools.others, shape)
    room = np.floor(job.limit_bytes - _runtime(layouts, job))
    if any_of(reserved > room):
        together = pools.main if pools.others is NO_BYTES else stage_peaks(programs)
        reserved = _in_room(reserved, together, room, job)
    if job.profile.run_ahead is None:
        return reserved
    piled_up = reserved + np.ceil(run_ahead_bytes(layouts, rows, job))
    has_room = piled_up.max(axis=0) <= room
    return np.where(has_room, piled_up, reserved)


def _in_room(reserved: FloatArray, allocated: FloatArray, room: FloatArray, job: Job) -> FloatArray:
    """Return what is reserved by an allocator that gives back what any stream's pool has free before it runs short.

    It takes no less than there is room for. Source: torch, c10/cuda/CUDACachingAllocator.cpp, `release_cached_blocks`.
    """
    needed = np.minimum(reserved, allocated + _kept_when_short(allocated, job))
    result: FloatArray = np.where(reserved > room, np.maximum(needed, room), reserved)
    return result


def _fragmentation(allocated_bytes: FloatArray, job: Job) -> FloatArray:
    runtime = job.profile.runtime
    return _surplus(allocated_bytes, runtime.reserved_over_allocated, job)


def _kept_when_short(allocated_bytes: FloatArray, job: Job) -> FloatArray:
    """Return what of fragmentation an allocator that runs short cannot give back."""
    return _surplus(allocated_bytes, job.profile.runtime.needed_over_allocated, job)


def _surplus(allocated_bytes: FloatArray, over_allocated: float, job: Job) -> FloatArray:
    slack = job.profile.runtime.reserved_slack_bytes
    result: FloatArray = np.ceil(allocated_bytes * (over_allocated - 1.0) + slack)
    return result


def _runtime(layouts: Candidates, job: Job) -> FloatArray:
    runtime: FloatArray = np.ceil(runtime_bytes(layouts, job.profile.runtime) + tensor_overlap_bytes(layouts, job))
    return runtime


def _account(layouts: Candidates, index: int, job: Job) -> Account:
    """Return every stage's worst event of one of the layouts; of equals the earlier."""
    asked = question_of(layouts, job)
    rows, shape = asked.rows, asked.rows.stage.shape
    programs = prepared(asked)
    runtime, pools = _runtime(layouts, job), stream_peaks(programs, job)
    reserved = _reserved(pools, programs, layouts, rows, job)
    expandable = pools.main + _surplus(pools.main, job.profile.runtime.expandable_over_allocated, job) + pools.others
    host = host_bytes(asked.held, asked.made, layouts, rows, job)
    stages = rows.stage[:, index].tolist()
    events = events_of_stages(programs, len(stages), index)
    allocated = np.array([of_stage.largest.total for of_stage in events])
    return Account(
        asked=asked,
        layers=tuple(_layers_of(stage, layouts, index, job) for stage in stages),
        events=events,
        fragmentation=reserved[:, index] - allocated,
        expandable=np.minimum(np.broadcast_to(expandable, shape)[:, index], reserved[:, index]),
        needed=np.minimum(allocated + _kept_when_short(allocated, job), reserved[:, index]),
        runtime=np.broadcast_to(runtime[index], len(stages)),
        host=np.broadcast_to(host, shape)[:, index],
        nvme=np.broadcast_to(np.ceil(placed(asked.held, layouts, job).nvme), shape)[:, index],
        needs=_needs(reserved.max(axis=0) + runtime, host, asked),
    )


def _at(values: FloatArray, index: int) -> int:
    """Return what one of the layouts of a list has; a single value holds for all."""
    return int(values[index] if values.size > 1 else values.item())


def _layers_of(stage: int, layouts: Candidates, index: int, job: Job) -> tuple[int, ...]:
    """Return the numbers of the layers of one stage of one of the layouts, lowest first."""
    return tuple(chain.from_iterable(pipeline_of(layouts, index, job).held(stage)))


def _stage_memory(account: Account, row: int, index: int, derived: Derived) -> StageMemory:
    events = account.events[row]
    worst = events.largest
    items = MemoryItems(
        **dict(zip(ITEMS, worst.held, strict=True)),
        fragmentation=int(account.fragmentation[row]),
        runtime=int(account.runtime[row]),
    )
    stage = int(account.asked.rows.stage[row, index])
    pipeline = pipeline_of(account.asked.layouts, index, account.asked.job)
    return StageMemory(
        stage=stage,
        layers=pipeline.span(stage),
        chunks=pipeline.spans(stage),
        peak_bytes=items.total_bytes,
        phase=worst.phase,
        items=items,
        moments=derived.part(
            "plan.memory.stages.moments",
            lambda: moments_of(events, account.layers[row]),
            otherwise=(),
        ),
    )
