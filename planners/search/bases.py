"""Every base a client could fix: each mesh that the GPUs form, with every micro-batch size.

The axes are multiplied one after another, and what cannot exist goes before the next one comes, so that hundreds of
thousands of bases take milliseconds. The rules (`planners/search/rules/`) are applied later, to fewer.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.ground.terms import RECOMPUTE_MODES
from plimsoll.planners.jobs.context_ranks import exchange_lacks, ring_lacks
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.jobs.pipeline_layouts import BLOCKS_BESIDE_LAYERS, PipelineLayout, worthwhile
from plimsoll.planners.jobs.recompute_modules import MIXTURE
from plimsoll.planners.layouts.candidates import FULL, BoolArray, IntArray
from plimsoll.planners.layouts.distinct import distinct
from plimsoll.planners.layouts.experts import expert_counts, expert_degrees, paired_fraction, replicas_form_groups
from plimsoll.planners.layouts.stages import MOST_KEPT_LISTS
from plimsoll.planners.memory.recurrent import block_scan
from plimsoll.planners.questions import TrainingQuestion

Bases = dict[str, IntArray]
SECONDARY, ALL_TO_ALL = "secondary_shard_group", "context_all_to_all"
# Of batches, sequences, and replicas of a search.
MOST_KEPT_DIVISORS = 1024


def every_mesh(question: TrainingQuestion, job: Job, gpus: IntArray) -> Bases:
    """Return all meshes of the GPU counts, one entry each.

    Micro-batch sizes (`with_micro_batches`), how a pipeline's blocks are divided (`with_stages`), shard groups
    (`with_shard_groups`) and context ranks that exchange heads (`with_head_exchange`) are apart.
    """
    request, can, layers = question.layout, job.profile.can, job.model.num_layers
    batch, most = question.global_batch_size, int(gpus.max())
    bases: Bases = {"gpus": gpus}
    tensor = _able(can.tensor_parallel, _tensor_degrees(job, most))
    bases = _times(bases, "tensor_parallel", _fixed_or(request.tensor_parallel, tensor))
    bases = _where(bases, bases["gpus"] % bases["tensor_parallel"] == 0)
    pipeline = _able(can.pipeline_parallel, range(1, min(layers + BLOCKS_BESIDE_LAYERS, most) + 1))
    bases = _times(bases, "pipeline_parallel", _fixed_or(request.pipeline_parallel, pipeline))
    per_stage = bases["gpus"] // bases["tensor_parallel"]
    bases = _where(bases, per_stage % bases["pipeline_parallel"] == 0)
    context = _able(can.context_parallel, _context_degrees(question, job, most))
    bases = _times(bases, "context_parallel", _fixed_or(request.context_parallel, context))
    ranks = bases["gpus"] // (bases["tensor_parallel"] * bases["pipeline_parallel"])
    bases["data_parallel"] = data = ranks // bases["context_parallel"]
    is_asked = data == (request.data_parallel or data)
    divides = batch % np.maximum(data * (question.micro_batch_size or 1), 1) == 0
    bases = _where(bases, (ranks % bases["context_parallel"] == 0) & (data > 0) & divides & is_asked)
    return _with_experts(with_needed_exchange(bases, question, job), question, job)


def with_micro_batches(bases: Bases, question: TrainingQuestion) -> Bases:
    """Return the bases with every micro-batch size that they can have."""
    batch = question.global_batch_size
    bases = _times(bases, "micro_batch_size", _fixed_or(question.micro_batch_size, divisors(batch)))
    return _where(bases, batch % (bases["data_parallel"] * bases["micro_batch_size"]) == 0)


def with_extreme_micro_batches(bases: Bases, question: TrainingQuestion) -> tuple[Bases, Bases]:
    """Return the bases with the smallest and with the largest micro-batch that they can have."""
    data, fixed = bases["data_parallel"], question.micro_batch_size
    smallest = np.full_like(data, fixed or 1)
    largest = smallest if fixed else question.global_batch_size // data
    return {**bases, "micro_batch_size": smallest}, {**bases, "micro_batch_size": largest}


def with_needed_exchange(bases: Bases, question: TrainingQuestion, job: Job) -> Bases:
    """Return the bases with context ranks that all exchange heads, where the stack has no ring for the model."""
    is_open = question.layout.context_all_to_all is None and job.profile.can.context_all_to_all
    if not is_open or not ring_lacks(job) or exchange_lacks(job):
        return bases
    ranks = bases["context_parallel"]
    divides = _joint_heads(job) % (bases["tensor_parallel"] * ranks) == 0
    # The rules tell of a degree that is fixed.
    may_be = divides | (ranks == 1) | (question.layout.context_parallel is not None)
    return _where({**bases, ALL_TO_ALL: ranks}, may_be)


def can_exchange_heads(bases: Bases, question: TrainingQuestion, job: Job) -> BoolArray:
    """Return which bases have context ranks that could exchange heads, where that is the search's to choose."""
    is_open = question.layout.context_all_to_all is None and job.profile.can.context_all_to_all
    is_open = is_open and ALL_TO_ALL not in bases and _joint_heads(job) > 1
    able: BoolArray = (bases["context_parallel"] > 1) & is_open
    return able


def with_head_exchange(bases: Bases, job: Job) -> Bases:
    """Return the bases with each group of context ranks that can exchange heads, one where none does left out."""
    heads = _joint_heads(job)
    grouped = _times(bases, ALL_TO_ALL, divisors(heads)[1:])
    ranks = grouped[ALL_TO_ALL]
    divides = (grouped["context_parallel"] % ranks == 0) & (heads % (grouped["tensor_parallel"] * ranks) == 0)
    if exchange_lacks(job):
        divides &= ranks < grouped["context_parallel"]
    return _where(grouped, divides)


def with_shard_groups(bases: Bases, question: TrainingQuestion, job: Job) -> Bases:
    """Return the bases with every shard group that divides their replicas."""
    data, fixed = bases["data_parallel"], question.layout.shard_group
    if fixed is None and not job.profile.can.shard_group:
        return {**bases, "shard_group": data}
    groups = sorted({group for replicas in distinct(data)[0].tolist() for group in divisors(replicas)})
    grouped = _times(bases, "shard_group", _fixed_or(fixed, groups))
    return _where(grouped, grouped["data_parallel"] % grouped["shard_group"] == 0)


def with_secondary_groups(bases: Bases, question: TrainingQuestion, job: Job) -> Bases:
    """Return the bases with no second copy of the weights, and with one of each part of a node that replicas fill.

    Without a choice they say nothing of it.
    """
    if question.layout.secondary_shard_group is not None or not job.profile.can.secondary_shard_group:
        return bases
    groups = _times(bases, SECONDARY, divisors(question.hardware.gpus_per_node))
    data, group = groups["data_parallel"], groups[SECONDARY]
    # Shared by all replicas it is the first one again.
    return _where(groups, (group == 1) | ((group < data) & (data % group == 0)))


def with_pipeline_layouts(bases: Mapping[str, IntArray], job: Job, *, only_first: bool = False) -> Bases:
    """Return the bases with every way to divide their pipelines that is worth trying, or with the first.

    Where none divides them the stack's default stays, and where a client asked for one way that does: the rules tell.
    """
    if len(job.pipeline_layouts) == 1:
        return {**bases, "pipeline_layout": np.zeros_like(bases["pipeline_parallel"])}
    most = int(bases["virtual_pipeline"].max(initial=1))
    keys, place = distinct((bases["pipeline_parallel"] - 1) * most + bases["virtual_pipeline"] - 1)
    ways, ends = _worthwhile(ByIdentity(job.pipeline_layouts), ByIdentity(job.model), most, tuple(keys.tolist()))
    first, counts = ends[place], ends[place + 1] - ends[place]
    if only_first:
        return {**bases, "pipeline_layout": ways[first]}
    spread = {name: values.repeat(counts) for name, values in bases.items()}
    number = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
    return {**spread, "pipeline_layout": ways[np.repeat(first, counts) + number]}


@functools.lru_cache(maxsize=MOST_KEPT_LISTS)
def _worthwhile(
    ways: ByIdentity[tuple[PipelineLayout, ...]], same: ByIdentity[ModelSpec], most: int, keys: tuple[int, ...]
) -> tuple[IntArray, IntArray]:
    """Return the ways worth trying of each pipeline, one after another, and where those of each end, from 0 on.

    `with_pipeline_layouts` numbers pipelines by stages and chunks.
    """
    every = [
        (worthwhile(ways.value, same, key // most + 1, key % most + 1) if key // most else ()) or (0,) for key in keys
    ]
    return np.array([way for some in every for way in some], dtype=np.int64), np.cumsum([0, *map(len, every)])


def with_expert_overlap(bases: Bases, question: TrainingQuestion, job: Job) -> Bases:
    """Return the bases with and without an exchange with experts that computation hides, where there is a choice.

    Without one they say nothing of it. What is asked for goes with all of them: the rules tell where it cannot be.
    """
    choices = expert_overlap_choices(question, job)
    if len(choices) == 1:
        return {**bases, "expert_overlap": np.ones_like(bases["expert_parallel"])} if choices[0] else bases
    stages, chunks = bases["pipeline_parallel"], bases["virtual_pipeline"]
    micro_batches = question.global_batch_size // (bases["data_parallel"] * bases["micro_batch_size"])
    can = (bases["expert_parallel"] > 1) & ((stages == 1) | (chunks > 1))
    again = np.flatnonzero(can & (paired_fraction(stages, chunks, micro_batches) > 0.0))
    index = np.concatenate([np.arange(stages.size), again])
    hidden = np.concatenate([np.zeros(stages.size, dtype=np.int64), np.ones(again.size, dtype=np.int64)])
    order = np.argsort(index, kind="stable")
    return {**only(bases, index[order]), "expert_overlap": hidden[order]}


def expert_overlap_choices(question: TrainingQuestion, job: Job) -> tuple[bool, ...]:
    """Return whether to hide the exchange with experts: what was asked for, or both where the job's layouts can."""
    choices = job.overlap.expert_parallel
    asked = question.layout.overlap
    if asked is not None and asked.expert_parallel is not None:
        return choices
    recomputes = question.recompute is not None and question.recompute.mode == RECOMPUTE_MODES[FULL]
    if recomputes or MIXTURE in job.recompute_modules or job.precision.compute_bytes == FP32_BYTES:
        return (False,)
    return choices if expert_counts(job.model) else (False,)


def only(bases: Mapping[str, IntArray], kept: BoolArray | IntArray) -> Bases:
    """Return some of the bases, by a mask or by their places."""
    if kept.dtype == np.bool_:
        kept = kept.nonzero()[0]
        if bases and kept.size == next(iter(bases.values())).size:
            return dict(bases)
    return {name: values.take(kept) for name, values in bases.items()}


def together(*parts: Mapping[str, IntArray]) -> Bases:
    """Return the bases of all parts, in order."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@functools.lru_cache(maxsize=MOST_KEPT_DIVISORS)
def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors, rising."""
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return tuple(sorted({*small, *(number // divisor for divisor in small)}))


def most_chunks(bases: Bases, question: TrainingQuestion, job: Job) -> IntArray:
    """Return the most chunks that a stage of each base can have: micro-batches must come in whole rounds of stages."""
    stages, fixed = bases["pipeline_parallel"], question.layout.virtual_pipeline
    if not job.profile.can.virtual_pipeline and fixed is None:
        return np.ones_like(stages)
    at_once = bases["data_parallel"] * bases["micro_batch_size"]
    can = (stages > 1) & (question.global_batch_size // at_once % stages == 0)
    most = np.where(can, np.maximum((job.model.num_layers + BLOCKS_BESIDE_LAYERS) // stages, 1), 1)
    return most if fixed is None else np.full_like(most, fixed)


def with_stages(bases: Bases, question: TrainingQuestion, job: Job) -> Bases:
    """Return the bases with every number of virtual stages, every way to divide them worth trying, and overlap."""
    most, fixed = most_chunks(bases, question, job), question.layout.virtual_pipeline
    every = _times(
        {**bases, "most": most}, "virtual_pipeline", _fixed_or(fixed, list(range(1, int(most.max(initial=1)) + 1)))
    )
    is_able = every["virtual_pipeline"] <= every.pop("most")
    divided = with_pipeline_layouts(_where(every, is_able & are_chunks_finer(every, question, job)), job)
    return with_expert_overlap(divided, question, job)


def are_chunks_finer(bases: Mapping[str, IntArray], question: TrainingQuestion, job: Job) -> BoolArray:
    """Return where chunks are smaller than with one fewer of them: of equal ones the fewest have fewest messages."""
    chunks, fixed = bases["virtual_pipeline"], question.layout.virtual_pipeline
    per_stage = -(-job.model.num_layers // bases["pipeline_parallel"])
    is_finer = -(-per_stage // chunks) < -(-per_stage // np.maximum(chunks - 1, 1))
    finer: BoolArray = (chunks == 1) | is_finer | (fixed is not None)
    return finer


def _joint_heads(job: Job) -> int:
    """Return how many ranks at most can have whole heads of queries and of keys and values; none without heads."""
    return int(np.gcd(job.model.attention_heads, job.model.key_value_heads))


def _with_experts(bases: Bases, question: TrainingQuestion, job: Job) -> Bases:
    """Return the bases with every expert-parallel degree, and with and without sequence parallelism."""
    can, asked = job.profile.can, question.layout.sequence_parallel
    bases = _times(bases, "expert_parallel", expert_degrees(question, job))
    replicas = bases["data_parallel"] * bases["context_parallel"]
    tensor, experts = bases["tensor_parallel"], bases["expert_parallel"]
    bases = _where(bases, replicas_form_groups(experts, replicas, tensor, over_tensor=can.experts_over_tensor))
    choices = can.sequence_parallel if asked is None else (asked,)
    bases = _times(bases, "sequence_parallel", [int(choice) for choice in choices])
    # Without tensor parallelism there is nothing to divide over, whatever is chosen.
    is_first = np.arange(bases["gpus"].size) % len(choices) == 0
    bases = _where(bases, (bases["tensor_parallel"] > 1) | is_first)
    tensor, experts = bases["tensor_parallel"], bases["expert_parallel"]
    # Who fixes it means tensor-parallel ranks beside it: the rules leave out what has none.
    bases["sequence_parallel"] = divided = bases["sequence_parallel"] * ((tensor > 1) | bool(asked))
    is_even = question.sequence_length % (bases["context_parallel"] * tensor) == 0
    return _where(bases, ((divided == 0) | is_even) & ((experts == 1) | (tensor == 1) | (divided == 1)))


def _tensor_degrees(job: Job, most: int) -> list[int]:
    """Return the degrees that leave every rank whole attention heads and key-value heads."""
    heads = _joint_heads(job)
    return [degree for degree in (divisors(heads) if heads else range(1, most + 1)) if degree <= most]


def _context_degrees(question: TrainingQuestion, job: Job, most: int) -> list[int]:
    """Return the degrees that cut the sequence twice for each rank; one where attention or layers cannot be cut."""
    if question.attention != "flash" or any(block_scan(part.block) is not None for part in job.layers):
        return [1]
    if ring_lacks(job) and (exchange_lacks(job) or not job.profile.can.context_all_to_all):
        return [1]
    half = question.sequence_length // 2 if question.sequence_length % 2 == 0 else 1
    return [ranks for ranks in divisors(half) if ranks <= most]


def _able(can: bool, degrees: Iterable[int]) -> list[int]:
    return list(degrees) if can else [1]


def _fixed_or(fixed: int | None, values: Sequence[int]) -> Sequence[int]:
    return values if fixed is None else [fixed]


def _times(bases: Bases, name: str, values: Sequence[int]) -> Bases:
    """Return every base with every value of another axis."""
    count = next(iter(bases.values())).size
    added = np.empty((count, len(values)), dtype=np.int64)
    added[:] = values
    # One value more for each needs no copies of the others.
    spread = bases if len(values) == 1 else {known: column.repeat(len(values)) for known, column in bases.items()}
    return {**spread, name: added.ravel()}


def _where(bases: Bases, kept: BoolArray) -> Bases:
    return only(bases, kept)
