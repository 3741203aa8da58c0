"""Changes to a serving question that engineers try, in their order; whether they help is for the advice to plan."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from plimsoll.planners.architecture import KvKind
from plimsoll.planners.questions import ServingQuestion
from plimsoll.planners.serving.advice.more_gpus import Divided, Goal, divided, fewest_gpus, freed
from plimsoll.planners.serving.advice.stated import on_gpus
from plimsoll.planners.serving.cache.kv_formats import KV_FORMATS
from plimsoll.planners.serving.cache.pools import holds
from plimsoll.planners.serving.engines.engine import engine_named
from plimsoll.planners.serving.formats.weight_format import WEIGHT_FORMATS
from plimsoll.planners.serving.replica import FITS, Replica
from plimsoll.planners.serving.search.candidates import Candidate
from plimsoll.planners.serving.sentences import replicas_text
from plimsoll.planners.serving.settings.lengths import longest_positions
from plimsoll.planners.serving.settings.settings import Settings, resolve_settings

# A shorter context is offered in whole steps of this many tokens, as people set it.
CONTEXT_STEP_TOKENS = 1024
# Utilization is offered in whole percent, and no more than engines are commonly started with: vLLM's and
# TensorRT-LLM's guides to tuning raise it where the cache is short, published launch files go to 0.95.
PERCENT, MOST_UTILIZATION_PERCENT = 100, 95
FP8 = "fp8"
MILLISECONDS = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A changed question and why it helps; of the changes of one `kind` only the first that helps is offered."""

    kind: str
    question: ServingQuestion
    reason: str


def changes(best: Candidate, goal: Goal, offered: Collection[str]) -> Iterator[Change]:
    """Yield changes from those that cost least to those that cost most; `offered` are the kinds that helped so far.

    Settings come first, then 8 bits, less to hold, more GPUs, and at last 4 bits.
    """
    question = best.question
    yield from _utilization(best)
    yield from _raised_utilization(best, goal)
    yield from _more_sequences(best, goal)
    yield from _whole_prompts(best)
    yield from _eight_bits(question, best.settings, offered)
    yield from _shorter(best)
    yield from _fewer_sequences(best)
    yield from _more_gpus(best, goal, offered)
    yield from _four_bits(question, best.settings)


def _utilization(best: Candidate) -> Iterator[Change]:
    """Offer the share of the card that is free, where the engine claims more."""
    memory, gpu = best.replica.memory, best.question.hardware.gpu
    if best.replica.keeps_limit:
        return
    outside = memory.claimed_bytes - memory.requested_bytes
    value = int((memory.limit_bytes - outside) * PERCENT / gpu.memory_bytes) / PERCENT
    if value > 0:
        yield Change(
            kind="utilization",
            question=replace(best.question, gpu_memory_utilization=value),
            reason="The engine claims a share of the whole GPU, and less than that is free.",
        )


def _raised_utilization(best: Candidate, goal: Goal) -> Iterator[Change]:
    """Offer the least larger share of the card whose cache suffices."""
    if not engine_named(best.question.engine).plans_work_apart or not best.replica.keeps_limit:
        return
    now = int(best.replica.utilization_fraction * PERCENT)
    shares = [
        replace(best.question, gpu_memory_utilization=percent / PERCENT)
        for percent in range(now + 1, MOST_UTILIZATION_PERCENT + 1)
    ]
    if (question := _least(shares, goal)) is not None:
        yield Change(
            kind="utilization", question=question, reason="A larger share of each GPU leaves more for the cache."
        )


def _more_sequences(best: Candidate, goal: Goal) -> Iterator[Change]:
    """Offer the least larger batch that suffices, where it is the batch limit and not the cache that lets wait."""
    replica, now = best.replica, best.settings.max_num_seqs
    most = replica.kv.requests_held // replica.degrees.attention_data_parallel
    if best.is_satisfying or not replica.fits:
        return
    limit = now
    while limit < most:
        below, limit = limit, min(2 * limit, most)
        batches = [replace(best.question, max_num_seqs=sequences) for sequences in range(below + 1, limit + 1)]
        if (question := _least(batches, goal)) is not None:
            yield Change(
                kind="max_num_seqs",
                question=question,
                reason=f"The cache holds more requests than the {now:,} that the engine runs at once.",
            )
            return


def _whole_prompts(best: Candidate) -> Iterator[Change]:
    """Offer as many tokens of a batch as are planned where none are asked, if those asked keep prompts waiting."""
    question, settings = best.question, best.settings
    if settings.most_running < settings.max_num_seqs and question.max_num_batched_tokens is not None:
        own = resolve_settings(replace(question, max_num_batched_tokens=None)).max_num_batched_tokens
        yield Change(
            kind="max_num_batched_tokens",
            question=replace(question, max_num_batched_tokens=own),
            reason="A prompt that is never cut starts sooner where a step has room for it beside all running requests.",
        )


def _least(questions: Sequence[ServingQuestion], goal: Goal) -> ServingQuestion | None:
    """Return the first of ever larger changes that does, found by halving; None where the largest does not."""
    if not questions or goal.reached_by(questions[-1]) is None:
        return None
    low, high = 0, len(questions) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if goal.reached_by(questions[middle]) is None else (low, middle)
    return questions[high]


def _eight_bits(question: ServingQuestion, settings: Settings, offered: Collection[str]) -> Iterator[Change]:
    """Offer weights in fp8, a cache in fp8, and both where neither helps alone."""
    is_wider = _is_wider(settings, FP8)
    if is_wider:
        yield Change(
            kind="weights",
            question=replace(question, weights=FP8),
            reason="Weights in fp8 (from an fp8 checkpoint, or quantized while loading) take half the memory.",
        )
    if settings.kv.bits_per_element <= KV_FORMATS[FP8].bits_per_element:
        return
    yield Change(
        kind="kv_cache",
        question=replace(question, kv_cache=FP8),
        reason="A cache in fp8 holds about twice the tokens of 16 bits.",
    )
    if is_wider and not {"weights", "kv_cache"} & set(offered):
        yield Change(
            kind="both",
            question=replace(question, weights=FP8, kv_cache=FP8),
            reason="Weights and cache in fp8 take half the memory of 16 bits.",
        )


def _four_bits(question: ServingQuestion, settings: Settings) -> Iterator[Change]:
    """Offer weights in 4 bits, from a checkpoint or quantized while it loads."""
    name = settings.profile.four_bit_weights
    if _is_wider(settings, name):
        told = "quantized while loading" if name == "nf4" else "from an AWQ or GPTQ checkpoint"
        yield Change(
            kind="four_bits",
            question=replace(question, weights=name),
            reason=f"Weights in 4 bits ({told}) take a quarter of the memory of 16 bits; answers may get worse.",
        )


def _is_wider(settings: Settings, weights: str) -> bool:
    return WEIGHT_FORMATS[weights].element_bits < settings.weights.element_bits


def _shorter(best: Candidate) -> Iterator[Change]:
    settings, replica = best.settings, best.replica
    if replica.fits or not replica.keeps_limit:
        return
    length = min(settings.max_model_len, longest_context(best.question, settings, replica))
    if length >= CONTEXT_STEP_TOKENS:
        length -= length % CONTEXT_STEP_TOKENS
    if settings.request_tokens <= length < settings.max_model_len:
        yield Change(
            kind="max_model_len",
            question=replace(best.question, max_model_len=length),
            reason="This is the longest context of which one request fits the cache.",
        )


def _fewer_sequences(best: Candidate) -> Iterator[Change]:
    """Offer ever smaller batches where their recurrent states, allocated at the start, leave no room."""
    replica = best.replica
    if replica.fits or not any(bucket.state.kind is KvKind.RECURRENT for bucket in replica.cache.buckets):
        return
    sequences = best.settings.max_num_seqs // 2
    while sequences:
        yield Change(
            kind="max_num_seqs",
            question=replace(best.question, max_num_seqs=sequences),
            reason="A smaller batch has fewer recurrent states, which leaves room for the cache.",
        )
        sequences //= 2


def longest_context(question: ServingQuestion, settings: Settings, replica: Replica) -> int:
    """Return the most tokens of one request that the replica's blocks hold, 0 if none, up to the model's limit."""
    cache = replica.cache
    usable = cache.usable(replica.pools)
    low, high = 0, longest_positions(question) or settings.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(usable, cache.set_aside(middle)) else (low, middle - 1)
    return low


def _more_gpus(best: Candidate, goal: Goal, offered: Collection[str]) -> Iterator[Change]:
    """Offer another layout of the same GPUs, then the fewest more that do what was asked.

    Weights in fp8 are offered beside more GPUs where they do not help alone and fewer GPUs suffice for them.
    """
    question = best.question
    if question.hardware.gpus.is_free:
        return
    if freed(question) != question:
        same = divided(freed(question), question, goal)
        if same is not None:
            yield Change(kind="layout", question=same.question, reason="Another layout of the same GPUs fits better.")
    found = fewest_gpus(question, goal)
    if _is_wider(best.settings, FP8) and not {"weights", "both"} & set(offered):
        narrow = fewest_gpus(replace(question, weights=FP8), goal)
        if narrow is not None and (found is None or narrow.found.gpus < found.found.gpus):
            for change in without_pipeline(narrow.found, goal, weights=(FP8,)):
                yield replace(change, kind="gpus_and_weights_without_pipeline")
            reason = f"Weights in fp8 take half the memory of 16 bits: with them {_gpus(narrow)} {goal.promise}."
            yield Change(kind="gpus_and_weights", question=narrow.question, reason=reason)
    if found is None:
        return
    for change in without_pipeline(found.found, goal, weights=(question.weights, FP8)):
        yield replace(change, kind="gpus_without_pipeline")
    machines = "" if question.objective == "fewest_gpus" else ", in powers of two within a node and whole nodes beyond"
    reason = f"The fewest GPUs that {goal.promise}{machines}: {_gpus(found)}."
    yield Change(kind="gpus", question=found.question, reason=reason)


def _gpus(divided: Divided) -> str:
    """Return a deployment's GPUs and how they are divided, in words."""
    found, degrees = divided.found, divided.found.replica.degrees
    parts = [f"tensor parallel {degrees.tensor_parallel}"]
    if degrees.attention_data_parallel > 1:
        parts.append(f"attention data parallel {degrees.attention_data_parallel}")
    if degrees.pipeline_parallel > 1:
        parts.append(f"pipeline parallel {degrees.pipeline_parallel}")
    if degrees.decode_context_parallel > 1:
        parts.append(f"decode context parallel {degrees.decode_context_parallel}")
    return f"{found.gpus:,} GPUs as {replicas_text(found)} of {' and '.join(parts)}"


def without_pipeline(found: Candidate, goal: Goal, *, weights: Sequence[str]) -> Iterator[Change]:
    """Offer tensor parallelism in place of a pipeline within a node, where a larger share or 8 bits make room for it.

    Only what takes less time per token than the pipeline is offered.
    """
    degrees, question, state = found.replica.degrees, found.question, found.state
    is_within = degrees.gpus <= question.hardware.gpus_per_node
    if degrees.pipeline_parallel == 1 or not is_within or state is None:
        return

    def is_faster(other: Candidate) -> bool:
        is_quicker = other.state is not None and other.state.tpot_seconds < state.tpot_seconds
        return goal.accepts(other) and is_quicker and other.replica.verdict in (FITS, found.replica.verdict)

    most = MOST_UTILIZATION_PERCENT / PERCENT
    is_raised = engine_named(question.engine).plans_work_apart and most > found.replica.utilization_fraction
    shares = (None, most) if is_raised else (None,)
    for changed in (
        replace(question, weights=name, gpu_memory_utilization=share or question.gpu_memory_utilization)
        for name in dict.fromkeys(weights)
        for share in shares
        if (share is not None or name != question.weights)
        and WEIGHT_FORMATS[name].element_bits <= found.settings.weights.element_bits
    ):
        fixed = freed(on_gpus(changed, found.gpus))
        fixed = replace(fixed, layout=replace(fixed.layout, pipeline_parallel=1))
        other = divided(fixed, question, replace(goal, accepts=is_faster))
        if other is not None and other.found.state is not None:
            times = [f"{each.tpot_seconds * MILLISECONDS:.1f}" for each in (other.found.state, state)]
            is_narrower = other.question.weights != question.weights
            reason = (
                f"{'Weights in fp8 make' if is_narrower else 'A larger share of each GPU makes'} room for tensor "
                f"parallelism in place of a pipeline: {times[0]} ms per token, where the pipeline on as many GPUs "
                f"takes {times[1]}."
            )
            yield Change(kind="without_pipeline", question=other.question, reason=reason)
            return
