"""The summary of a serving answer: first whether what was asked is kept, then what the cache holds."""

from __future__ import annotations

from collections.abc import Callable

from plimsoll.planners.ground.figures import SIGNIFICANT_DIGITS, counted, duration, figure
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.questions import ServingQuestion
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.search.candidates import Candidate, latency_limits
from plimsoll.planners.serving.settings.settings import Settings
from plimsoll.planners.serving.times.disaggregation import DisaggregatedDeployment

TENTHS = 10
# A figure that misses what was asked is told in as many digits as tell it apart, short of this many.
MOST_DIGITS = 8


def serving_summary(question: ServingQuestion, settings: Settings, best: Candidate) -> str:
    """Return whether the deployment does what was asked, and what it holds."""
    where = f"{best.gpus} x {question.hardware.gpu.id} ({_layout_text(best)})"
    name = question.model.name
    if not best.replica.fits:
        return f"{name} does not fit on {where}: {_obstacle(settings, best)}"
    if best.state is None:
        return f"{name} fits on {where}. {_cache(settings, best)}"
    each = "" if settings.output_tokens == 1 else f"{duration(best.state.tpot_seconds)} per token, "
    speed = (
        f"{duration(best.state.ttft_seconds)} to the first token, {each}{best.output_tokens_per_second:,.0f} tokens/s"
    )
    if not best.is_satisfying:
        told = f"{name} fits on {where}, but misses what was asked: {'; '.join(misses(best))}."
        return f"{told} At {_load(settings, best)}: {speed}. {_cache(settings, best)}"
    return f"{name} serves {_load(settings, best)} on {where}: {speed}. {_cache(settings, best)}"


def _load(settings: Settings, best: Candidate) -> str:
    """Return what it is asked to bear, in words."""
    rate = settings.requests_per_second
    if rate is not None and not best.is_outrun:
        return f"{figure(rate)} requests per second"
    if best.question.burst_seconds is not None:
        return f"bursts of {counted(best.concurrency, 'request')}, one every {duration(best.question.burst_seconds)}"
    return counted(best.concurrency, "request") + " at once"


def misses(best: Candidate) -> list[str]:
    """Return what was asked and is not kept, each with both numbers."""
    missed, state, settings = [], best.state, best.settings
    running = 0 if best.deployment is None else best.deployment.most_running
    if best.is_outrun and settings.requests_per_second is not None and state is not None:
        answered, asked = _told_apart(state.requests_per_second, settings.requests_per_second, figure)
        missed.append(f"it answers {answered} of {asked} requests per second")
    elif best.load is not None and best.meets_concurrency is False and best.load.burst_clears_seconds is not None:
        missed.append(
            f"a burst is answered after {duration(best.load.burst_clears_seconds)}, and ever later as more come"
        )
    elif best.meets_concurrency is False:
        missed.append(f"{running:,} of {best.concurrency:,} requests run at once and the others wait")
    if state is None:
        return missed
    latencies = ((state.ttft_seconds, "to the first token"), (state.tpot_seconds, "per token"))
    for (seconds, what), limit in zip(latencies, latency_limits(best.question), strict=True):
        if limit is not None and seconds > limit:
            taken, asked = _told_apart(seconds, limit, duration)
            missed.append(f"it takes {taken} {what}, and {asked} was asked")
    return missed


def _told_apart(value: float, asked: float, told: Callable[[float, int], str]) -> tuple[str, str]:
    """Return two numbers in as few digits as tell them apart."""
    digits = next(
        (each for each in range(SIGNIFICANT_DIGITS, MOST_DIGITS) if told(value, each) != told(asked, each)), MOST_DIGITS
    )
    return told(value, digits), told(asked, digits)


def _cache(settings: Settings, best: Candidate) -> str:
    replica = best.replica
    # As the engine logs it: each attention rank has a cache of its own.
    ranks = replica.degrees.attention_data_parallel
    owner = "an attention rank" if ranks > 1 else "a replica"
    kv, asked, longest = replica.kv, settings.request_tokens, settings.max_model_len
    most = int(kv.max_concurrency)
    held = f"{counted(most, 'request')} of {longest:,}"
    if asked < longest:
        # The engine counts one block more for the longest than it can use; longer requests are never more.
        some = kv.requests_held // ranks
        more = min(most, some)
        held = f"{counted(some, 'request')} of {asked:,}, or {more:,} of {longest:,}"
        if some == more:
            held = f"{counted(some, 'request')} of up to {longest:,}"
    return (
        f"Each GPU has {kv.available_bytes / GIB:.1f} GiB of KV cache; {owner} holds {kv.tokens:,} tokens: {held} each."
    )


def _obstacle(settings: Settings, best: Candidate) -> str:
    """Return why it does not fit, in sums that add up as they are printed."""
    memory, replica = best.replica.memory, best.replica
    if not replica.keeps_limit:
        return (
            f"at utilization {figure(replica.utilization_fraction)} the engine takes {memory.claimed_bytes / GIB:.1f} "
            f"GiB of each GPU, and {memory.limit_bytes / GIB:.1f} GiB are free."
        )
    share, held = (round(part * TENTHS / GIB) for part in (replica.share_bytes, replica.held_bytes))
    needs = f"weights and working memory take {held / TENTHS:.1f} GiB of each GPU"
    if share <= held:
        return f"{needs}, and the engine's share is {share / TENTHS:.1f}, so nothing is left for the KV cache."
    return (
        f"{needs} and the engine's share is {share / TENTHS:.1f}; the {(share - held) / TENTHS:.1f} GiB left hold "
        f"{replica.kv.max_concurrency:.0%} of one request of {settings.max_model_len:,} tokens."
    )


def _layout_text(best: Candidate) -> str:
    """Return the replicas and their degrees, those that divide nothing left out."""
    return f"{replicas_text(best)} of {_degrees_text(best.replica.degrees)}"


def replicas_text(best: Candidate) -> str:
    """Return how many replicas there are, of those that only prefill or only decode how many of each."""
    if isinstance(best.deployment, DisaggregatedDeployment):
        decoding = counted(best.deployment.decode_replicas, "decode replica")
        return f"{best.deployment.prefill_replicas:,} prefill and {decoding}"
    return counted(best.replicas, "replica")


def _degrees_text(degrees: Degrees) -> str:
    parts = [f"tensor parallel {degrees.tensor_parallel}", f"pipeline parallel {degrees.pipeline_parallel}"]
    for name, degree in (
        ("attention data parallel", degrees.attention_data_parallel),
        ("expert parallel", degrees.expert_parallel),
        ("decode context parallel", degrees.decode_context_parallel),
    ):
        if degree > 1:
            parts.append(f"{name} {degree}")
    return ", ".join(parts)
