"""What must divide evenly: heads, matrices, the batch and the sequence."""

from __future__ import annotations

import math

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.jobs.context_ranks import exchange_lacks, ring_lacks
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import BoolArray, Candidates
from plimsoll.planners.memory.recurrent import block_scan
from plimsoll.planners.memory.shards import have_unequal_parts, tensor_divisions, uneven_matrices
from plimsoll.planners.search.rules.rule import NOWHERE, Asked, Breach, Case, FixedBreach, Rule
from plimsoll.planners.stacks.model_code import in_words

MOST_NAMED = 3  # kinds of matrices that one message lists


def _splits_heads(layouts: Candidates, asked: Asked) -> BoolArray:
    tensor, model = layouts.tensor_parallel, asked.model
    split: BoolArray = (model.attention_heads % tensor != 0) | (model.key_value_heads % tensor != 0)
    return split


def _heads(case: Case, asked: Asked) -> str:
    tensor, model = case.layout.tensor_parallel, asked.model
    counts = (("attention heads", model.attention_heads), ("key-value heads", model.key_value_heads))
    uneven = [f"the {count} {name}" for name, count in counts if count % tensor]
    either = " or " if case.is_formed else " nor "
    return f"tensor_parallel {tensor} does not divide {either.join(uneven)}. {_whole_heads(model)}"


def _whole_heads(model: ModelSpec) -> str:
    """Return the tensor-parallel degrees that leave every rank whole heads, in a sentence."""
    common = math.gcd(model.attention_heads, model.key_value_heads)
    *some, last = [str(degree) for degree in range(1, common + 1) if common % degree == 0]
    return f"Whole heads allow {', '.join(some)} or {last}." if some else f"Whole heads allow only {last}."


HEADS_DIVIDE = Rule(
    name="heads_divide",
    field="tensor_parallel",
    reads=("tensor_parallel",),
    reason="tensor_parallel must divide the attention heads and the key-value heads",
    breaches=(FixedBreach(where=_splits_heads, words=_heads),),
)


def _splits_matrices(layouts: Candidates, job: Job) -> BoolArray:
    """Return where the stack cannot cut matrices into equal parts, the vocabulary's rows apart."""
    return have_unequal_parts(job.parts, tensor_divisions(layouts, job))


def _matrices(case: Case, job: Job) -> str:
    (way,) = tensor_divisions(case.layouts.take([0]), job).ways
    uneven = sorted(
        f"{weight.name.format(layer='*', expert='*')} {tuple(weight.shape)}"
        for part in job.layers
        for weight in uneven_matrices(part, way)
    )
    kinds = tuple(dict.fromkeys(uneven))
    others = f" and {len(kinds) - MOST_NAMED} more" if len(kinds) > MOST_NAMED else ""
    tensor = case.layout.tensor_parallel
    return f"tensor_parallel {tensor} does not divide evenly {', '.join(kinds[:MOST_NAMED])}{others}."


MATRICES_DIVIDE = Rule(
    name="matrices_divide",
    field="tensor_parallel",
    reads=("tensor_parallel",),
    reason="tensor_parallel must divide the feed-forward's width",
    breaches=(Breach(where=_splits_matrices, words=_matrices),),
)


def _splits_batch(layouts: Candidates, asked: Asked) -> BoolArray:
    split: BoolArray = asked.global_batch_size % (layouts.data_parallel * layouts.micro_batch_size) != 0
    return split


def _batch(case: Case, asked: Asked) -> str:
    data, micro = case.layout.data_parallel, case.layout.micro_batch_size
    if data == 1:
        return f"global_batch_size {asked.global_batch_size} is not a multiple of micro_batch_size {micro}."
    return (
        f"global_batch_size {asked.global_batch_size} is not a multiple of data_parallel {data} x micro_batch_size "
        f"{micro} = {data * micro}."
    )


BATCH_DIVIDES = Rule(
    name="batch_divides",
    field="data_parallel",
    reads=("data_parallel", "micro_batch_size"),
    reason="data_parallel x micro_batch_size must divide global_batch_size",
    breaches=(FixedBreach(where=_splits_batch, words=_batch),),
)


def _splits_context(layouts: Candidates, job: Job) -> BoolArray:
    """Return where the sequence is not cut evenly, twice for each context rank, so that causal work is balanced."""
    context = layouts.context_parallel
    split: BoolArray = (context > 1) & (job.sequence_length % (2 * context) != 0)
    return split


def _splits_sequence(layouts: Candidates, job: Job) -> BoolArray:
    ranks = layouts.context_parallel * layouts.tensor_parallel
    split: BoolArray = layouts.sequence_parallel & (job.sequence_length % ranks != 0)
    return split


def _context(case: Case, job: Job) -> str:
    context = case.layout.context_parallel
    return f"2 x context_parallel {context} does not divide the sequence of {job.sequence_length} tokens."


def _sequence(case: Case, job: Job) -> str:
    context, tensor = case.layout.context_parallel, case.layout.tensor_parallel
    return (
        f"context_parallel {context} x tensor_parallel {tensor} = {context * tensor} does not divide the sequence of "
        f"{job.sequence_length} tokens, which sequence_parallel needs."
    )


SEQUENCE_DIVIDES = Rule(
    name="sequence_divides",
    field="context_parallel",
    reads=("context_parallel", "tensor_parallel"),
    reason="2 x context_parallel, and with sequence parallelism tensor_parallel, must divide sequence_length",
    breaches=(
        Breach(where=_splits_context, words=_context),
        Breach(where=_splits_sequence, words=_sequence),
    ),
)


def _cuts_eager(layouts: Candidates, job: Job) -> BoolArray:
    """Return where ring attention meets eager attention, which has no online softmax."""
    cut: BoolArray = NOWHERE if job.attention == "flash" else layouts.context_parallel > 1
    return cut


def _eager(case: Case, job: Job) -> str:
    return f"context_parallel {case.layout.context_parallel} needs flash attention, and attention is {job.attention}."


CONTEXT_NEEDS_FLASH = Rule(
    name="context_needs_flash",
    field="context_parallel",
    reads=("context_parallel",),
    reason="context parallelism needs flash attention",
    breaches=(Breach(where=_cuts_eager, words=_eager),),
)


def _cuts_recurrent(layouts: Candidates, job: Job) -> BoolArray:
    """Return where a sequence is cut for recurrent layers, whose state no ring of keys and values carries on."""
    recurs = any(block_scan(part.block) is not None for part in job.layers)
    cut: BoolArray = layouts.context_parallel > 1 if recurs else NOWHERE
    return cut


def _recurrent(case: Case, job: Job) -> str:
    context = case.layout.context_parallel
    return f"context_parallel {context} cannot be planned: {job.model.model_type} has recurrent layers."


def _rings_without_code(layouts: Candidates, job: Job) -> BoolArray:
    """Return where a ring of context ranks meets attention that the stack has no code for."""
    if not ring_lacks(job):
        return NOWHERE
    ring: BoolArray = layouts.context_parallel > layouts.context_all_to_all
    return ring


def _ring(case: Case, job: Job) -> str:
    context, lacked = case.layout.context_parallel, ring_lacks(job)
    way = "" if exchange_lacks(job) else f" With context_all_to_all {context} all of them exchange heads instead."
    name = job.profile.name
    return f"context_parallel {context}: {name} has no code for {in_words(lacked)} in a ring of ranks.{way}"


def _exchanges_without_code(layouts: Candidates, job: Job) -> BoolArray:
    """Return where context ranks all exchange heads of attention that the stack has no such code for."""
    if not exchange_lacks(job):
        return NOWHERE
    ranks = layouts.context_all_to_all
    alone: BoolArray = (ranks > 1) & (ranks == layouts.context_parallel)
    return alone


def _exchange(case: Case, job: Job) -> str:
    ranks, lacked = case.layout.context_all_to_all, exchange_lacks(job)
    way = "" if ring_lacks(job) else " Fewer of them may, beside a ring."
    name = job.profile.name
    return f"context_all_to_all {ranks}: {name} has no code for {in_words(lacked)} where all ranks exchange heads.{way}"


CONTEXT_NEEDS_ATTENTION = Rule(
    name="context_needs_attention",
    field="context_parallel",
    reads=("context_parallel", "context_all_to_all"),
    reason="the stack needs code for the model's attention over context_parallel ranks",
    breaches=(
        Breach(where=_cuts_recurrent, words=_recurrent),
        Breach(where=_rings_without_code, words=_ring),
        Breach(where=_exchanges_without_code, words=_exchange),
    ),
)


def _splits_context_ranks(layouts: Candidates, _job: Job) -> BoolArray:
    """Return where ranks that exchange heads are no part of those that divide a sequence.

    Source: Megatron-Core 0.16.1, parallel_state.py, `hierarchical_context_parallel_sizes`.
    """
    split: BoolArray = layouts.context_parallel % layouts.context_all_to_all != 0
    return split


def _context_ranks(case: Case, _job: Job) -> str:
    layout = case.layout
    return f"context_all_to_all {layout.context_all_to_all} does not divide context_parallel {layout.context_parallel}."


def _splits_exchanged_heads(layouts: Candidates, job: Job) -> BoolArray:
    """Return where a tensor-parallel rank's heads are not dealt out whole.

    Source: Transformer Engine, context_parallel.py, `flash_attn_a2a_communicate` and "num_heads % cp_size == 0".
    """
    parts, model = layouts.tensor_parallel * layouts.context_all_to_all, job.model
    uneven = (model.attention_heads % parts != 0) | (model.key_value_heads % parts != 0)
    split: BoolArray = (layouts.context_all_to_all > 1) & uneven
    return split


def _exchanged_heads(case: Case, job: Job) -> str:
    layout, model = case.layout, job.model
    parts = layout.tensor_parallel * layout.context_all_to_all
    return (
        f"tensor_parallel {layout.tensor_parallel} x context_all_to_all {layout.context_all_to_all} = {parts} must "
        f"divide the {model.attention_heads} attention heads and the {model.key_value_heads} key-value heads."
    )


EXCHANGED_HEADS_DIVIDE = Rule(
    name="exchanged_heads_divide",
    field="context_all_to_all",
    reads=("context_parallel", "tensor_parallel", "context_all_to_all"),
    reason="context_all_to_all must divide context_parallel, and with tensor_parallel the heads",
    breaches=(
        Breach(where=_splits_context_ranks, words=_context_ranks),
        Breach(where=_splits_exchanged_heads, words=_exchanged_heads),
    ),
)


def _has_no_tensor_ranks(layouts: Candidates, _asked: Asked) -> BoolArray:
    lone: BoolArray = layouts.sequence_parallel & (layouts.tensor_parallel == 1)
    return lone


def _no_tensor_ranks(case: Case, _asked: Asked) -> str:
    return f"sequence_parallel needs tensor_parallel above 1{'' if case.is_formed else ', and 1 is fixed'}."


SEQUENCE_PARALLEL_NEEDS_TENSOR = Rule(
    name="sequence_parallel_needs_tensor",
    field="sequence_parallel",
    reads=(),
    reason="sequence_parallel needs tensor_parallel above 1",
    breaches=(FixedBreach(where=_has_no_tensor_ranks, words=_no_tensor_ranks, given=("tensor_parallel",)),),
)
