"""Laws of serving plans: what is left open is never answered worse than what is fixed, and no answer breaks off."""

from __future__ import annotations

import dataclasses
import math

from hypothesis import given
from hypothesis import strategies as st

from planners.catalogue import catalogue
from planners.errors import PlimsollError
from planners.hardware import GpuCount
from planners.questions import ServiceLevel, ServingLayoutRequest, ServingQuestion
from planners.serving.candidates import Candidate
from planners.serving.search import search_fleet
from service.gpus import resolve_hardware
from service.models.resolving import ModelResolver
from service.requests.hardware import OneHardware
from service.settings import Settings
from tests.properties.laws import law

CATALOGUE = catalogue()
RESOLVER = ModelResolver(CATALOGUE, Settings())
MODELS = tuple(model.id for model in CATALOGUE.models)
GPUS = tuple(gpu.id for gpu in CATALOGUE.gpus)
OBJECTIVES = ("throughput", "fewest_gpus", "cost", "latency")
MOST_GPUS = 64
VERDICTS = ("fits", "tight", "no")

levels = st.one_of(
    st.none(),
    st.builds(
        ServiceLevel,
        ttft_seconds=st.sampled_from((None, 0.5, 5.0)),
        tpot_seconds=st.sampled_from((None, 0.02, 0.05)),
    ),
)


@dataclasses.dataclass(frozen=True)
class Asked:
    """A question, and numbers of GPUs of which the second lies between the first and the third."""

    question: ServingQuestion
    counts: tuple[int, int, int]


@st.composite
def questions(draw: st.DrawFn) -> Asked:
    """Draw a question that needs one GPU or a few more, so that how they are divided matters."""
    model = RESOLVER.resolve(draw(st.sampled_from(MODELS))).spec
    gpu = CATALOGUE.gpu(draw(st.sampled_from(GPUS)))
    weights = draw(st.sampled_from(("bf16", "bf16", "fp8")))
    least = math.ceil(model.parameters * (1 if weights == "fp8" else 2) / (0.9 * gpu.memory_bytes))
    number = min(MOST_GPUS, least + draw(st.sampled_from((0, 1, 1, 2, 3, 4, 5, 8, 12))))
    counts = (draw(st.integers(1, number)), number, min(MOST_GPUS, number + draw(st.sampled_from((0, 1, 2, 5, 50)))))
    hardware = resolve_hardware(OneHardware(gpu=gpu.id, gpus=number, usd_per_gpu_hour=2.0), CATALOGUE)
    rate = draw(st.sampled_from((None, None, 0.5, 20.0)))
    question = ServingQuestion(
        model=model,
        hardware=hardware,
        weights=weights,
        engine=draw(st.sampled_from(("vllm", "vllm", "sglang", "tensorrt-llm"))),
        max_model_len=draw(st.sampled_from((2_048, 8_192, 32_768))),
        input_tokens=draw(st.sampled_from((128, 1_024))),
        output_tokens=draw(st.sampled_from((128, 1_000))),
        requests_per_second=rate,
        concurrency=None if rate is not None else draw(st.sampled_from((None, 1, 30, 64, 500, 3_000))),
        slo=draw(levels),
        objective=draw(st.sampled_from(OBJECTIVES)),
    )
    return Asked(question, counts)


def best(question: ServingQuestion, **changes: object) -> Candidate | None:
    """Return what is planned, None where the question is refused."""
    try:
        return search_fleet((dataclasses.replace(question, **changes),)).candidates[0]
    except PlimsollError:
        return None


def on(question: ServingQuestion, least: int, most: int, *, is_free: bool = False) -> ServingQuestion:
    count = GpuCount(minimum=least, maximum=most, is_free=is_free)
    return dataclasses.replace(question, hardware=dataclasses.replace(question.hardware, gpus=count))


def shortfall(candidate: Candidate) -> tuple[float, ...]:
    """Return how much of what was asked is missed, least first: room, requests, latencies."""
    return (
        VERDICTS.index(candidate.replica.verdict),
        float(not candidate.is_satisfying),
        float(candidate.is_outrun),
        candidate.latency_excess,
        float(candidate.meets_concurrency is False),
    )


def goal(candidate: Candidate) -> float:
    """Return what the objective wants least of."""
    if candidate.question.objective == "fewest_gpus":
        return candidate.gpus
    if candidate.state is None:
        return 0.0
    if candidate.question.objective == "cost":
        return candidate.cost
    if candidate.question.objective == "latency":
        return candidate.state.ttft_seconds + (candidate.settings.output_tokens - 1) * candidate.state.tpot_seconds
    return -candidate.output_tokens_per_second


def is_no_worse(found: Candidate, point: Candidate) -> bool:
    """Return whether an answer misses no more of what was asked, and else reaches the objective as well."""
    mine, other = shortfall(found), shortfall(point)
    if mine[0] == VERDICTS.index("no"):
        # Nothing fits: which comes closest is no matter of the objective.
        return other[0] == mine[0]
    close = 1e-9
    missed = tuple(round(part, 9) for part in mine), tuple(round(part, 9) for part in other)
    return missed[0] < missed[1] or (missed[0] == missed[1] and goal(found) <= goal(point) + close * abs(goal(point)))


@given(asked=questions())
@law(few=60, many=3_000)
def test_a_range_of_gpus_is_never_answered_worse_than_a_number_within_it(asked):
    least, number, most = asked.counts
    point = best(on(asked.question, number, number))
    if point is None:
        return
    found = best(on(asked.question, least, most))
    assert found is not None
    assert is_no_worse(found, point)


@given(asked=questions())
@law(few=30, many=1_000)
def test_where_no_number_is_named_no_number_with_fewer_gpus_keeps_all_that_was_asked(asked):
    point = best(on(asked.question, asked.counts[1], asked.counts[1]))
    if point is None or not point.is_satisfying or point.replica.verdict != "fits":
        return
    found = best(on(asked.question, 1, 2_048, is_free=True))
    assert found is not None
    assert found.is_satisfying
    assert found.gpus <= point.gpus


@given(
    asked=questions(),
    tensor=st.sampled_from((None, 1, 2, 3, 4, 6, 8, 16)),
    attention=st.sampled_from((None, None, 1, 2, 3, 8)),
    pipeline=st.sampled_from((None, 1, 2, 3, 5, 12)),
    experts=st.sampled_from((None, None, 1, 8)),
)
@law(few=60, many=3_000)
def test_open_degrees_are_never_answered_worse_than_fixed_ones(asked, tensor, attention, pipeline, experts):
    layout = ServingLayoutRequest(
        tensor_parallel=tensor,
        attention_data_parallel=attention,
        pipeline_parallel=pipeline,
        expert_parallel=experts,
    )
    question = on(asked.question, asked.counts[1], asked.counts[1])
    fixed = best(question, layout=layout)
    if fixed is None:
        return
    found = best(question)
    assert found is not None
    assert is_no_worse(found, fixed)
