"""What a serving question may say: numbers in their ranges, known names, and nothing that contradicts itself."""

from __future__ import annotations

from plimsoll.planners.ground.errors import InvalidQuestion, NotYetAvailable
from plimsoll.planners.ground.ranges import check_ranges
from plimsoll.planners.ground.terms import SERVING_OBJECTIVES
from plimsoll.planners.questions import ServingQuestion
from plimsoll.planners.serving.releases.profile import EngineProfile

# Parts of a question with numbers of their own.
PARTS = ("slo", "speculative", "disaggregated")


def check_values(question: ServingQuestion) -> None:
    """Raise `InvalidQuestion` for a value that its field cannot have."""
    if question.objective not in SERVING_OBJECTIVES:
        raise InvalidQuestion(
            f"{question.objective[:40]!r} is no objective; known are {', '.join(SERVING_OBJECTIVES)}.",
            pointer="/serving/objective",
        )
    check_ranges(question, "/serving")
    check_ranges(question.layout, "/layout")
    for name in PARTS:
        if (part := getattr(question, name)) is not None:
            check_ranges(part, f"/serving/{name}")


def check_load(question: ServingQuestion) -> None:
    """Raise `InvalidQuestion` where two kinds of arrivals are asked for, or bursts without their size."""
    if question.burst_seconds is not None and question.concurrency is None:
        raise InvalidQuestion(
            "burst_seconds needs concurrency, the number of requests that come at once.",
            pointer="/serving/burst_seconds",
        )
    if question.burst_seconds is not None and question.disaggregated is not None:
        raise NotYetAvailable(
            "Bursts cannot be planned with prefill and decode replicas yet.", pointer="/serving/burst_seconds"
        )
    if question.requests_per_second is not None and question.concurrency is not None:
        raise InvalidQuestion(
            "concurrency is a closed loop and requests_per_second an open one; give one of them.",
            pointer="/serving/requests_per_second",
        )


def chunks_prompts(question: ServingQuestion, profile: EngineProfile) -> bool:
    """Return whether prompts are cut where a step is full; raise where the engine cannot be told what was asked."""
    own, asked = profile.scheduling.chunks_prompts, question.chunked_prefill
    if asked is None or asked == own:
        return own
    if not profile.scheduling.chunking_is_optional:
        raise NotYetAvailable(
            f"{profile.title} is planned with chunked prefill {'on' if own else 'off'} alone; omit chunked_prefill.",
            pointer="/serving/chunked_prefill",
        )
    return asked


def check_timing(question: ServingQuestion, profile: EngineProfile) -> None:
    """Raise `NotYetAvailable` for what takes a speed that no measurement describes."""
    if profile.timed_as is not None:
        return
    if question.slo is not None:
        raise NotYetAvailable(f"The speed of {profile.engine} cannot be predicted yet.", pointer="/serving/slo")
    if question.disaggregated is not None:
        raise NotYetAvailable(
            f"{profile.engine} cannot be planned with prefill and decode replicas yet.",
            pointer="/serving/disaggregated",
        )
    if question.burst_seconds is not None:
        raise NotYetAvailable(
            f"The speed of {profile.engine} cannot be predicted yet.", pointer="/serving/burst_seconds"
        )
    if question.requests_per_second is not None:
        raise NotYetAvailable(
            f"The speed of {profile.engine} cannot be predicted yet.", pointer="/serving/requests_per_second"
        )
    if question.objective == "latency":
        raise NotYetAvailable(f"The speed of {profile.engine} cannot be predicted yet.", pointer="/objective")
