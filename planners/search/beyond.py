"""Layouts beyond the usual ones: every degree, size and number of layers that a client could fix.

There are hundreds of thousands of them, and the time of a layout takes a hundredth of what its memory takes to work
out. So they are timed first, and only those are given memory that are no slower than the best that is known: nothing
is passed over that could win. Three lower bounds come before that. A base takes at least what its forward and backward
passes take, whatever its sharding, offload and recomputation; where nothing fits with room, the layouts of the least
memory decide first whether anything does; and of those that are fast enough most have no room for their states and
what they keep alone (`least_bytes`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from plimsoll.planners.ground.stopping import ShouldStop
from plimsoll.planners.ground.terms import HIGHEST_ZERO_STAGE, NVME
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.jobs.recompute_modules import MIXTURE
from plimsoll.planners.layouts.candidates import FULL, NONE, BoolArray, FloatArray, IntArray
from plimsoll.planners.layouts.distinct import distinct
from plimsoll.planners.layouts.grid import Grid
from plimsoll.planners.memory.peak import least_bytes
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.search.axes import Choices, choices_of, grid_over, offload_choices, stage_layers
from plimsoll.planners.search.bases import (
    ALL_TO_ALL,
    SECONDARY,
    Bases,
    can_exchange_heads,
    every_mesh,
    expert_overlap_choices,
    most_chunks,
    only,
    together,
    with_extreme_micro_batches,
    with_head_exchange,
    with_micro_batches,
    with_secondary_groups,
    with_shard_groups,
    with_stages,
)
from plimsoll.planners.search.best import Best, best_of
from plimsoll.planners.search.objectives import objective_of
from plimsoll.planners.search.pool import Pool, alike, evaluated, has_many_of_one_stage, known_steps, timed
from plimsoll.planners.search.ranking import complexity, least_complexity
from plimsoll.planners.search.rules.divisibility import MATRICES_DIVIDE
from plimsoll.planners.search.rules.every import RULES_OF_SHARD_GROUPS, obey
from plimsoll.planners.search.rules.rule import anywhere
from plimsoll.planners.timing.efficiency import efficiency_on
from plimsoll.planners.timing.pace import context_seconds
from plimsoll.planners.timing.step import (
    least_seconds,
    least_seconds_of_any_sizes,
    least_seconds_of_any_stages,
    step_seconds,
)

# Meshes that are given micro-batches and stages at once, the fastest first: the best of the first spare most others.
MESHES_AT_FIRST, MOST_MESHES = 128, 4096
# The number of a mesh, by which those that differ in their exchange of heads are told.
MESH = "mesh"
# Layouts whose memory is bounded first, then twice as many and so on: the best of the first spare most others.
LAYOUTS_AT_FIRST = 16_384
FEW_LAYOUTS = 8192
# So many bases are divided into stages before any is bounded.
FEW_TO_DIVIDE = 128
# So many layouts are timed once, rather than first those that must take least.
FEW_LAYOUTS_TO_TIME = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class Beyond:
    """All layouts of one framework on some GPUs: meshes without micro-batches and stages, and the choices on each."""

    question: TrainingQuestion
    job: Job
    meshes: Bases
    choices: Choices

    def __len__(self) -> int:
        """Return the number of meshes."""
        return self.meshes["gpus"].size


def beyond_usual(question: TrainingQuestion, job: Job, gpus: IntArray, *, with_offload: bool) -> Beyond:
    """Return all layouts of one framework; offload that nobody asked for is among them `with_offload`."""
    choices = choices_of(question, job)
    if with_offload:
        choices = replace(choices, offload=offload_choices(question, job.profile.can))
    return Beyond(question=question, job=job, meshes=every_mesh(question, job, gpus), choices=choices)


def on_drives(beyond: Beyond) -> Beyond | None:
    """Return the same layouts with their states on NVMe in place of the host; None where that is no choice.

    It is one where the request says what the nodes' drives give and leaves open where states go: they are slower than
    the host, and win only where it lacks memory.
    """
    asked, job, choices = beyond.question, beyond.job, beyond.choices
    is_open = asked.layout.offload_target is None and asked.hardware.nvme_bytes_per_second is not None
    if not is_open or NVME not in job.profile.can.offload_targets:
        return None
    offload = tuple(moved for moved in choices.offload if moved[0] > 0)
    stages = tuple(stage for stage in choices.zero_stages if stage == HIGHEST_ZERO_STAGE)
    if not offload or not stages:
        return None
    swapped = replace(choices, offload=offload, zero_stages=stages)
    return replace(beyond, job=replace(job, offload_target=NVME), choices=swapped)


def all_of_few(beyond: Beyond) -> Grid | None:
    """Return all layouts as one grid where they are so few that telling them apart would take longer.

    Where every number of recomputed layers is a choice they are never few.
    """
    choices = beyond.choices
    if _counts_layers(beyond):
        return None
    each = len(choices)
    if len(beyond) * each > FEW_LAYOUTS:
        return None
    beyond = _with_head_exchange(beyond)
    sized = with_micro_batches(beyond.meshes, beyond.question)
    if sized["gpus"].size * each > FEW_LAYOUTS:
        return None
    staged = with_stages(sized, beyond.question, beyond.job)
    if beyond.question.layout.shard_group is None and staged["gpus"].size * each > FEW_LAYOUTS:
        return None
    bases = with_shard_groups(staged, beyond.question, beyond.job)
    bases = with_secondary_groups(bases, beyond.question, beyond.job)
    if bases["gpus"].size * each > FEW_LAYOUTS:
        return None
    return _grid_of_groups(beyond, bases)


def least_memory(beyond: Beyond, should_stop: ShouldStop) -> Pool | None:
    """Return the contenders among the layouts of the least memory; where none of them fits, nothing does.

    Those have the smallest micro-batches, or one micro-batch and so no sums of gradients, no virtual stages, a fused
    loss, and recompute all layers or, where that keeps more than it spares, none.
    """
    question = beyond.question
    smallest, largest = with_extreme_micro_batches(beyond.meshes, question)
    is_larger = largest["micro_batch_size"] > smallest["micro_batch_size"]
    staged = with_stages(together(smallest, only(largest, is_larger)), question, beyond.job)
    # A list of blocks says how many virtual stages there are.
    says = question.layout.virtual_pipeline is not None or question.layout.pipeline_layout is not None
    is_plain = (staged["virtual_pipeline"] == 1) | says
    if "expert_overlap" in staged and len(expert_overlap_choices(question, beyond.job)) > 1:
        is_plain &= staged["expert_overlap"] == 0
    least = with_shard_groups(only(staged, is_plain), question, beyond.job)
    if not least["gpus"].size:
        return None
    sparing = replace(beyond, choices=_of_least_memory(beyond.choices))
    grid = _allowed(_grid_of_groups(sparing, least), beyond.job)
    return evaluated(grid, beyond.job, question.hardware, should_stop)


def _grid_of_groups(beyond: Beyond, bases: Bases) -> Grid:
    """Return the grid of bases with shard groups, each layout once.

    ZeRO stage 0, to which a group means nothing, has no smaller ones, and none below 3 has a second copy of weights.
    """
    grid = grid_over(beyond.question, beyond.job, bases, beyond.choices)
    if SECONDARY in bases:
        is_below = (grid.layouts.zero_stage < HIGHEST_ZERO_STAGE) & (bases[SECONDARY] > 1)
        grid = replace(grid, distinct=grid.distinct & ~is_below)
    if beyond.question.layout.shard_group is not None:
        return grid
    is_repeated = (grid.layouts.zero_stage == 0) & (bases["shard_group"] != bases["data_parallel"])
    return replace(grid, distinct=grid.distinct & ~is_repeated)


def _of_least_memory(choices: Choices) -> Choices:
    """Return the choices that take least memory on any base: all layers computed again, or none, and a fused loss."""
    return replace(
        choices,
        recompute=tuple(choice for choice in choices.recompute if choice[1] == 1.0),
        fused_cross_entropy=choices.fused_cross_entropy[-1:],
    )


def _with_room(beyond: Beyond, bases: Bases) -> Bases:
    """Return the bases without shard groups of which any layout could have room, by the least that those take.

    Layers that computation of another micro-batch runs beside are not recomputed whole: there the parts that spare most
    take least.
    """
    could = _have_room(beyond, bases)
    if "expert_overlap" in bases:
        left = np.flatnonzero(~could & (bases["expert_overlap"] > 0))
        sets = beyond.job.module_sets
        sparing = [number for number in range(1, len(sets)) if MIXTURE not in sets[number]]
        if left.size and sparing:
            choices = replace(beyond.choices, recompute=(), module_sets=(sparing[-1],))
            could[left] = _have_room(replace(beyond, choices=choices), only(bases, left))
    return only(bases, could)


def _have_room(beyond: Beyond, bases: Bases) -> BoolArray:
    """Return which bases without shard groups have room for what their layouts of the least memory take at the least.

    States take least where they are divided over all replicas, unless a rule forbids that.
    """
    if not bases["gpus"].size:
        return np.zeros(0, dtype=bool)
    data, asked = bases["data_parallel"], beyond.question.layout.shard_group
    grouped = {**bases, "shard_group": data if asked is None else np.full_like(data, asked)}
    grid = grid_over(beyond.question, beyond.job, grouped, _of_least_memory(beyond.choices))
    forbidden = anywhere(rule.broken(grid.layouts, beyond.job) for rule in RULES_OF_SHARD_GROUPS)
    # A single replica has no other group.
    forbidden = forbidden & (data > 1)
    could: BoolArray = np.asarray(np.broadcast_to(forbidden & grid.distinct, grid.shape).any(axis=(0, 1, 2)))
    grid = _allowed(grid, beyond.job)
    for index in alike(grid, stages_apart=has_many_of_one_stage(grid)):
        some = grid.of_bases(index).smallest()
        has_room = (least_bytes(some.layouts, beyond.job) <= beyond.question.hardware.limit_bytes) & some.distinct
        could[index] |= np.broadcast_to(has_room, some.shape).any(axis=(0, 1, 2))
    return could


def faster(beyond: Beyond, best: Best, pools: list[Pool], should_stop: ShouldStop) -> Best:
    """Add to `pools` the contenders that go before `best`, or are its near equals; return the best after them.

    Meshes that exchange heads come after those that do not, which they seldom beat. Choices of recomputation that are
    many, or each a search of their own, come last, and once for all meshes.
    """
    beyond = _with_head_exchange(beyond, best)
    least = _least_of_meshes(beyond)
    possible = np.flatnonzero(_can_win(beyond.meshes, least, best))
    order = objective_of(beyond.question, beyond.meshes["gpus"][possible], least[possible])
    possible = possible[np.lexsort([order, _exchanges_heads(beyond.meshes)[possible]])]
    start, step, left = 0, MESHES_AT_FIRST, []
    while start < possible.size:
        block = possible[start : start + step]
        start, step = start + step, min(2 * step, MOST_MESHES)
        still = block[_can_win(only(beyond.meshes, block), least[block], best)]
        sized = with_micro_batches(only(beyond.meshes, still), beyond.question)
        sized = _without_needless_exchange(beyond, sized)
        # The stages of few are bounded at once.
        if sized["gpus"].size > FEW_TO_DIVIDE:
            sized = _fast(sized, _least_seconds(beyond, sized), best)
        staged = with_stages(sized, beyond.question, beyond.job)
        staged = _with_room(beyond, _fast(staged, _least_seconds(beyond, staged), best))
        if not staged["gpus"].size:
            continue
        bases = with_shard_groups(staged, beyond.question, beyond.job)
        bases = with_secondary_groups(bases, beyond.question, beyond.job)
        # Computing more again makes none of them faster.
        bases, own, grid = _fastest_first(beyond, bases, best)
        if own.size:
            left.append((bases, own))
            best = _swept_in_parts(beyond, grid, best, pools, should_stop)
    if not left:
        return best
    bases, least = together(*(some for some, _ in left)), np.concatenate([own for _, own in left])
    return _swept_in_turns(beyond, bases, least, best, pools, should_stop)


def _with_head_exchange(beyond: Beyond, best: Best | None = None) -> Beyond:
    """Return the same with context ranks that exchange heads, on each mesh that could win if those sent nothing.

    Without a best layout any could.
    """
    question, job = beyond.question, beyond.job
    index = np.flatnonzero(can_exchange_heads(beyond.meshes, question, job))
    if not index.size:
        return beyond
    meshes = {**beyond.meshes, MESH: np.arange(len(beyond))}
    alone = {**meshes, ALL_TO_ALL: np.ones_like(meshes[MESH])}
    if best is not None:
        divided = replace(beyond, meshes=only(meshes, index))
        index = index[_can_win(divided.meshes, _least_of_meshes(divided, with_context_traffic=False), best)]
    return replace(beyond, meshes=together(alone, with_head_exchange(only(meshes, index), job)))


def _exchanges_heads(bases: Bases) -> BoolArray:
    """Return which bases have context ranks that exchange heads."""
    exchanges: BoolArray = bases.get(ALL_TO_ALL, np.ones_like(bases["gpus"])) > 1
    return exchanges


def _without_needless_exchange(beyond: Beyond, bases: Bases) -> Bases:
    """Return the bases without groups that exchange heads where fewer ranks, or none, show no more traffic.

    Fewer hold no more, so that a larger group wins only where less of what it sends is seen: on some kind of layer,
    computed once or again.
    """
    if MESH not in bases or not _exchanges_heads(bases).any():
        return bases
    bases = only(bases, np.lexsort([bases[ALL_TO_ALL], bases["micro_batch_size"], bases[MESH]]))
    base = np.stack([bases[MESH], bases["micro_batch_size"]])
    seen = _context_seconds(beyond, bases)
    alone = _context_seconds(beyond, {**bases, ALL_TO_ALL: np.ones_like(bases[ALL_TO_ALL])})
    beaten = _exchanges_heads(bases) & (alone <= seen).all(axis=0)
    for fewer in range(1, distinct(bases[ALL_TO_ALL])[0].size):
        is_same = (base[:, :-fewer] == base[:, fewer:]).all(axis=0)
        beaten[fewer:] |= is_same & (seen[:, :-fewer] <= seen[:, fewer:]).all(axis=0)
    return only(bases, ~beaten)


def _context_seconds(beyond: Beyond, bases: Bases) -> FloatArray:
    """Return what context ranks send and attention does not hide: rows of kinds of layers, computed once or again."""
    job, hardware, choices = beyond.job, beyond.question.hardware, beyond.choices
    plain = {"virtual_pipeline": np.ones_like(bases["gpus"]), "pipeline_layout": np.zeros_like(bases["gpus"])}
    chosen = replace(
        choices,
        zero_stages=choices.zero_stages[:1],
        offload=((0, False),),
        fused_cross_entropy=(False,),
        recompute=((NONE, 1.0), (FULL, 1.0)),
    )
    grid = grid_over(beyond.question, job, {**bases, **plain, "shard_group": bases["data_parallel"]}, chosen)
    seen = context_seconds(grid.layouts, job, hardware, efficiency_on(job.profile.name, hardware))
    return np.concatenate([np.broadcast_to(each, grid.shape).reshape(-1, grid.bases) for each in seen])


def _swept_in_turns(
    beyond: Beyond, bases: Bases, least: FloatArray, best: Best, pools: list[Pool], should_stop: ShouldStop
) -> Best:
    """Sweep some bases, which take so much at the least, turn by turn of what more is computed again."""
    for turn, index in _turns(beyond, bases):
        index = index[_can_win(only(bases, index), least[index], best)]
        _, own, grid = _fastest_first(turn, only(bases, index), best)
        if own.size:
            best = _swept_in_parts(turn, grid, best, pools, should_stop)
    return best


def _fastest_first(beyond: Beyond, bases: Bases, best: Best) -> tuple[Bases, FloatArray, Grid]:
    """Return the bases whose fastest choices can go before the best layout, what those take, and all their layouts.

    Few layouts are timed once, all of them; of many, those of the bases alone that are left.
    """
    count = bases["gpus"].size * len(beyond.choices)
    grid = _timed(beyond, _grid_of_groups(beyond, bases)) if 0 < count <= FEW_LAYOUTS_TO_TIME else None
    own = None if grid is None else _seconds_of_timed(beyond, grid)
    if own is None:
        own = _seconds(beyond, bases)
    kept = np.flatnonzero(_can_win(bases, own, best))
    left = only(bases, kept)
    return left, own[kept], _grid_of_groups(beyond, left) if grid is None else grid.of_bases(kept)


def _swept_in_parts(beyond: Beyond, grid: Grid, best: Best, pools: list[Pool], should_stop: ShouldStop) -> Best:
    """Sweep all layouts of a grid that obey the rules."""
    grid = _allowed(grid, beyond.job)
    for like in alike(grid, stages_apart=has_many_of_one_stage(grid)):
        best = _swept(beyond, grid.of_bases(like).smallest(), best, pools, should_stop)
    return best


def _fast(bases: Bases, least: FloatArray, best: Best) -> Bases:
    """Return the bases that can go before the best layout, by the least seconds of each."""
    return only(bases, _can_win(bases, least, best))


def _can_win(bases: Bases, least: FloatArray, best: Best) -> BoolArray:
    return best.could_lose_to(bases["gpus"], least, least_complexity(bases))


def _least_of_meshes(beyond: Beyond, *, with_context_traffic: bool = True) -> FloatArray:
    """Return the least that each mesh can take, whatever its micro-batches and stages."""
    question, job, hardware = beyond.question, beyond.job, beyond.question.hardware
    smallest, largest = with_extreme_micro_batches(beyond.meshes, question)
    chunks, efficiency = most_chunks(smallest, question, job), efficiency_on(job.profile.name, hardware)
    plain = {"virtual_pipeline": np.ones_like(chunks), "pipeline_layout": np.zeros_like(chunks)}
    every = {**largest, **plain, "shard_group": largest["data_parallel"]}
    hides = any(expert_overlap_choices(question, job))

    def passes(grid: Grid, index: IntArray) -> FloatArray:
        small = replace(grid.layouts, micro_batch_size=smallest["micro_batch_size"][index])
        return least_seconds_of_any_sizes(
            small,
            grid.layouts,
            job,
            hardware,
            efficiency,
            chunks[index],
            hides_exchange=hides,
            with_context_traffic=with_context_traffic,
        )

    return _least_of(beyond, every, replace(beyond.choices, recompute=((NONE, 1.0),)), passes)


def _least_seconds(beyond: Beyond, bases: Bases) -> FloatArray:
    """Return the least that each base can take: its passes, by any stages where it has none yet."""
    question, job, hardware = beyond.question, beyond.job, beyond.question.hardware
    chunks, efficiency = most_chunks(bases, question, job), efficiency_on(job.profile.name, hardware)
    undivided: Bases = {"virtual_pipeline": np.ones_like(chunks), "pipeline_layout": np.zeros_like(chunks)}
    if any(expert_overlap_choices(question, job)):
        undivided["expert_overlap"] = (bases["expert_parallel"] > 1).astype(np.int64)
    every = {**(undivided if "pipeline_layout" not in bases else {}), **bases, "shard_group": bases["data_parallel"]}

    def passes(grid: Grid, index: IntArray) -> FloatArray:
        if "pipeline_layout" in bases:
            return least_seconds(grid.layouts, job, hardware, efficiency)
        return least_seconds_of_any_stages(grid.layouts, job, hardware, efficiency, chunks[index])

    return _least_of(beyond, every, replace(beyond.choices, recompute=((NONE, 1.0),)), passes)


def _seconds(beyond: Beyond, bases: Bases) -> FloatArray:
    """Return what the fastest of the choices take on each base: the first of recomputation, which takes least."""
    job, hardware = beyond.job, beyond.question.hardware
    efficiency = efficiency_on(job.profile.name, hardware)

    def steps(grid: Grid, _index: IntArray) -> FloatArray:
        return step_seconds(grid.layouts, job, hardware, efficiency).total

    return _least_of(beyond, bases, beyond.choices.least_recomputed(), steps)


def _seconds_of_timed(beyond: Beyond, grid: Grid) -> FloatArray | None:
    """Return the same of bases all of whose layouts are timed; None where the fastest choices are not among them."""
    choices, layouts = beyond.choices, grid.layouts
    if (0, False) not in choices.offload or False not in choices.fused_cross_entropy:
        return None
    fused = choices.fused_cross_entropy.index(False)
    shares, lengths = len(choices.recompute), len(choices.full_layers)
    recompute = [*range(min(shares or lengths, 1)), *range(shares + lengths, grid.shape[1])]
    stages = range(choices.offload.index((0, False)), grid.shape[2], len(choices.offload))
    seconds = np.broadcast_to(known_steps(grid).total, grid.shape)[fused][np.ix_(recompute, stages)]
    divides = np.broadcast_to(MATRICES_DIVIDE.obeyed(layouts, beyond.job), grid.shape).all(axis=(0, 1, 2))
    return np.where(divides, seconds.min(axis=(0, 1), initial=math.inf), math.inf)


def _timed(beyond: Beyond, grid: Grid) -> Grid:
    return timed(grid, beyond.job, beyond.question.hardware)


def _least_of(
    beyond: Beyond, bases: Bases, choices: Choices, seconds: Callable[[Grid, IntArray], FloatArray]
) -> FloatArray:
    """Return the least seconds of each base's layouts without offload; infinite where its matrices do not divide."""
    plain = replace(choices, offload=((0, False),), fused_cross_entropy=(False,))
    least: FloatArray = np.full(bases["gpus"].size, math.inf)
    # A stack that shards nothing has no ZeRO stage for a fixed shard group.
    if least.size and plain.zero_stages:
        grid = grid_over(beyond.question, beyond.job, bases, plain)
        divides = np.broadcast_to(MATRICES_DIVIDE.obeyed(grid.layouts, beyond.job), grid.shape)
        index = np.flatnonzero(divides.all(axis=(0, 1, 2)))
        if index.size:
            some = grid.of_bases(index)
            least[index] = np.broadcast_to(seconds(some, index), some.shape).min(axis=(0, 1, 2))
    return least


def _turns(beyond: Beyond, bases: Bases) -> Iterator[tuple[Beyond, IntArray]]:
    """Yield the indices of bases with further choices of recomputation.

    Eighths of the layers were there first; now comes every number of them, then parts of all layers.
    """
    if _counts_layers(beyond):
        yield from with_every_number_of_layers(beyond, bases)
    modules = _with_modules(beyond)
    if modules is not None:
        yield modules, np.arange(bases["gpus"].size)


def with_every_number_of_layers(beyond: Beyond, bases: Bases) -> Iterator[tuple[Beyond, IntArray]]:
    """Yield the bases with every number of layers that their stages have; of many bases stage length by length.

    Of unequal stages those of the longest count: one fewer is all layers of the others.
    """
    layers = stage_layers(bases, beyond.job)
    have_several = np.flatnonzero(layers > 1)
    most = int(layers.max(initial=0))
    lengths = [most] if have_several.size * most <= FEW_LAYOUTS else distinct(layers[have_several])[0].tolist()[::-1]
    for length in lengths:
        counted = replace(beyond.choices, recompute=(), full_layers=tuple(range(1, length)))
        index = have_several if len(lengths) == 1 else have_several[layers[have_several] == length]
        if index.size:
            yield replace(beyond, choices=counted), index


def _with_modules(beyond: Beyond) -> Beyond | None:
    """Return the same with sets of modules recomputed in all layers; None where that is not the search's to choose."""
    sets = tuple(range(1, len(beyond.job.module_sets)))
    return replace(beyond, choices=replace(beyond.choices, recompute=(), module_sets=sets)) if sets else None


def _counts_layers(beyond: Beyond) -> bool:
    """Return whether the number of recomputed layers is the search's to choose."""
    return beyond.question.recompute is None and "full_layers" in beyond.job.profile.can.recompute


def _swept(beyond: Beyond, grid: Grid, best: Best, pools: list[Pool], should_stop: ShouldStop) -> Best:
    """Give memory to what of a grid is fast enough, the fastest first."""
    question, job, hardware = beyond.question, beyond.job, beyond.question.hardware
    grid = grid if grid.known else _timed(beyond, grid)
    gpus = np.broadcast_to(grid.layouts.gpus, (grid.bases,))
    simplest = np.broadcast_to(complexity(grid.layouts), grid.shape)
    seconds = np.broadcast_to(known_steps(grid).total, grid.shape)
    live = best.could_lose_to(gpus, seconds, simplest) & grid.distinct
    index = np.flatnonzero(live.any(axis=(0, 1, 2)))
    if not index.size:
        return best
    some = replace(grid.of_bases(index), distinct=live[..., index])
    gpus, seconds, simplest = gpus[index], seconds[..., index], simplest[..., index]
    quickest = np.where(some.distinct, objective_of(question, gpus, seconds), math.inf).min(axis=(0, 1, 2))
    order = np.argsort(quickest, kind="stable")[: np.count_nonzero(quickest < math.inf)]
    start, step = 0, max(LAYOUTS_AT_FIRST // math.prod(grid.shape[:-1]), 1)
    while start < order.size:
        part = np.sort(order[start : start + step])
        start, step = start + step, 2 * step
        live = some.distinct[..., part] & best.could_lose_to(gpus[part], seconds[..., part], simplest[..., part])
        fast = replace(some.of_bases(part), distinct=live)
        found = evaluated(fast, job, hardware, should_stop, only_room=True)
        if found is not None:
            pools.append(found)
            best = best_of(question, pools) or best
    return best


def _allowed(grid: Grid, job: Job) -> Grid:
    """Return the grid with what breaks a rule left out of `distinct`."""
    return replace(grid, distinct=obey(grid.layouts, job, grid.distinct).allowed)
