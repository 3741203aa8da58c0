"""The summary of a serving answer: first whether what was asked is kept, then what the cache holds."""

from __future__ import annotations

from planners.questions import ServingQuestion
from planners.serving.candidates import Candidate
from planners.serving.degrees import Degrees
from planners.serving.disaggregation import DisaggregatedDeployment
from planners.serving.engine import GIB
from planners.serving.settings import Settings

MILLISECONDS = 1e3
TENTHS = 10


def serving_summary(question: ServingQuestion, settings: Settings, best: Candidate) -> str:
    """Return whether the deployment does what was asked, and what it holds."""
    where = f"{best.gpus} x {question.hardware.gpu.id} ({_layout_text(best)})"
    name = question.model.name
    if not best.replica.fits:
        return f"{name} does not fit on {where}: {_obstacle(settings, best)}"
    if best.state is None:
        return f"{name} fits on {where}. {_cache(settings, best)}"
    speed = (
        f"{best.state.ttft_seconds * MILLISECONDS:,.0f} ms to the first token, "
        f"{best.state.tpot_seconds * MILLISECONDS:.1f} ms per token, {best.output_tokens_per_second:,.0f} tokens/s"
    )
    if not best.is_satisfying:
        told = f"{name} fits on {where}, but misses what was asked: {', and '.join(misses(best))}."
        return f"{told} At {_load(settings, best)}: {speed}. {_cache(settings, best)}"
    return f"{name} serves {_load(settings, best)} on {where}: {speed}. {_cache(settings, best)}"


def _load(settings: Settings, best: Candidate) -> str:
    """Return what it is asked to bear, in words."""
    rate = settings.requests_per_second
    if rate is not None and not best.is_outrun:
        return f"{rate:g} requests per second"
    return _counted(best.concurrency, "request") + " at once"


def misses(best: Candidate) -> list[str]:
    """Return what was asked and is not kept, each with both numbers."""
    missed, slo, state, settings = [], best.question.slo, best.state, best.settings
    running = 0 if best.deployment is None else best.deployment.most_running
    if best.is_outrun and settings.requests_per_second is not None and state is not None:
        missed.append(
            f"{state.requests_per_second:.3g} of {settings.requests_per_second:g} requests per second are answered"
        )
    elif best.meets_concurrency is False:
        missed.append(f"{running:,} of {best.concurrency:,} requests run at once and the others wait")
    if slo is None or state is None:
        return missed
    for seconds, limit, what in (
        (state.ttft_seconds, slo.ttft_seconds, "to the first token"),
        (state.tpot_seconds, slo.tpot_seconds, "per token"),
    ):
        if limit is not None and seconds > limit:
            asked = f"{limit * MILLISECONDS:,.4g}"
            missed.append(f"it takes {_above(seconds * MILLISECONDS, asked)} ms {what} where {asked} were asked")
    return missed


def _above(value: float, asked: str) -> str:
    """Return a number with as many digits as tell it from the one that was asked."""
    for digits in (3, 4, 5, 6):
        text = f"{value:,.{digits}g}"
        if "e" not in text and text != asked:
            return text
    return f"{value:,.3f}"


def _cache(settings: Settings, best: Candidate) -> str:
    replica = best.replica
    # As the engine logs it: each attention rank has a cache of its own.
    ranks = replica.degrees.attention_data_parallel
    owner = "an attention rank" if ranks > 1 else "a replica"
    kv, asked, longest = replica.kv, settings.request_tokens, settings.max_model_len
    most = int(kv.max_concurrency)
    held = f"{_counted(most, 'request')} of {longest:,}"
    if asked < longest:
        held = f"{_counted(kv.requests_held // ranks, 'request')} of {asked:,}, or {most:,} of {longest:,}"
    return f"Each GPU has {kv.available_bytes / GIB:.1f} GiB of KV cache; {owner} holds {kv.tokens:,} tokens: {held}."


def _obstacle(settings: Settings, best: Candidate) -> str:
    """Return why it does not fit, in sums that add up as they are printed."""
    memory, replica = best.replica.memory, best.replica
    if not replica.keeps_limit:
        return (
            f"at utilization {replica.utilization_fraction:g} the engine takes {memory.claimed_bytes / GIB:.1f} GiB "
            f"of each GPU, and {memory.limit_bytes / GIB:.1f} GiB are free."
        )
    share, held = (round(part * TENTHS / GIB) for part in (replica.share_bytes, replica.held_bytes))
    needs = f"weights and working memory take {held / TENTHS:.1f} GiB of each GPU"
    if share <= held:
        return f"{needs}, and the engine's share is {share / TENTHS:.1f}, so that nothing is left for the KV cache."
    return (
        f"{needs} and the engine's share is {share / TENTHS:.1f}; the {(share - held) / TENTHS:.1f} GiB left hold "
        f"{replica.kv.max_concurrency:.2f} requests of {settings.max_model_len:,} tokens."
    )


def _layout_text(best: Candidate) -> str:
    """Return the replicas and their degrees, those that divide nothing left out."""
    return f"{replicas_text(best)} of {_degrees_text(best.replica.degrees)}"


def replicas_text(best: Candidate) -> str:
    """Return how many replicas there are, of those that only prefill or only decode how many of each."""
    if isinstance(best.deployment, DisaggregatedDeployment):
        decoding = _counted(best.deployment.decode_replicas, "decode replica")
        return f"{best.deployment.prefill_replicas:,} prefill and {decoding}"
    return _counted(best.replicas, "replica")


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


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
