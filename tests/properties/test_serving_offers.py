"""A law of the advice on serving: said in the request, every offer gives the plan that it was offered with."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.planners.ground.stopping import never
from plimsoll.service.ground.settings import Settings
from plimsoll.service.models.resolving import ModelResolver
from plimsoll.service.plans.answers import InferPlanBody
from plimsoll.service.plans.learned_starts import NOTHING_LEARNED
from plimsoll.service.plans.making import infer_answer
from plimsoll.service.plans.questions import QuestionResolver
from plimsoll.service.requests.serving import InferRequest
from tests.properties.laws import law

CATALOGUE = catalogue()
MODELS = ModelResolver(CATALOGUE, Settings())
QUESTIONS = QuestionResolver(CATALOGUE, MODELS)
NAMES = tuple(model.id for model in CATALOGUE.models)
GPUS = tuple(gpu.id for gpu in CATALOGUE.gpus)
ENGINES = ("vllm", "vllm", "sglang", "tensorrt-llm", "transformers")
FIGURES = ("ttft_seconds", "tpot_seconds", "output_tokens_per_second")


def planned(body: dict[str, Any]) -> InferPlanBody:
    """Return what the service answers, without its database."""
    request = InferRequest.model_validate(body)
    resolved = QUESTIONS.resolve("infer", request, {}, NOTHING_LEARNED)
    answer, _ = infer_answer(request, resolved, never)
    assert isinstance(answer, InferPlanBody)
    return answer


def with_change(body: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Return the request with an offered change said in it."""
    changed = copy.deepcopy(body)
    for name, value in json.loads(json.dumps(change)).items():
        *path, last = name.split(".")
        part: Any = changed
        for step in path:
            part = part[int(step)] if isinstance(part, list) else part.setdefault(step, {})
        part[last] = value
    return changed


@st.composite
def hardware(draw: st.DrawFn, parameters: int) -> dict[str, Any]:
    """Draw GPUs that are about as many as the model takes, often too few."""
    gpu = CATALOGUE.gpu(draw(st.sampled_from(GPUS)))
    least = math.ceil(2 * parameters / (0.9 * gpu.memory_bytes))
    number = min(96, max(1, least + draw(st.sampled_from((-3, -1, 0, 0, 1, 2, 4)))))
    gpus = draw(
        st.sampled_from((number, number, {"min": 1, "max": number}, {"min": max(1, number - 2), "max": number}))
    )
    taken = draw(st.sampled_from((0, 0, 0, gpu.memory_bytes // 8)))
    return {
        "gpu": gpu.id,
        "gpus": gpus,
        "used_bytes": taken,
        "usd_per_gpu_hour": draw(st.sampled_from((2.0, 3.5))),
    }


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    name = draw(st.sampled_from(NAMES))
    parameters = MODELS.resolve(name).spec.parameters
    rate = draw(st.sampled_from((None, 0.2, 2, 30)))
    slo = {
        "ttft_seconds": draw(st.sampled_from((None, 0.1, 0.5, 5.0))),
        "tpot_seconds": draw(st.sampled_from((None, 0.01, 0.03, 0.05, 0.2))),
    }
    serving = {
        "engine": draw(st.sampled_from(ENGINES)),
        "max_model_len": draw(st.sampled_from((1_024, 4_096, 32_768))),
        "input_tokens": draw(st.sampled_from((None, 128, 500))),
        "output_tokens": draw(st.sampled_from((None, 128, 500))),
        "requests_per_second": rate,
        "concurrency": None if rate else draw(st.sampled_from((None, 7, 64, 600, 3_000))),
        "weights": draw(st.sampled_from((None, None, "fp16", "fp8", ["bf16", "fp8"]))),
        "max_num_seqs": draw(st.sampled_from((None, None, 16, 100, [32, 64]))),
        "gpu_memory_utilization": draw(st.sampled_from((None, None, 0.5, 0.8))),
        "disaggregated": draw(st.sampled_from((None, None, None, True))),
        "slo": draw(st.sampled_from((None, slo, slo))),
    }
    degree = st.sampled_from((None, None, None, 1, 2))
    layout = {
        "tensor_parallel": draw(degree),
        "pipeline_parallel": draw(degree),
        "expert_parallel": draw(st.sampled_from((None, None, None, None, 1))),
    }
    one = draw(hardware(parameters))
    is_fleet = draw(st.sampled_from((False, False, False, True)))
    return {
        "model": name,
        "hardware": {"fleet": [one, draw(hardware(parameters))]} if is_fleet else one,
        "serving": {field: value for field, value in serving.items() if value is not None},
        "layout": layout,
        "objective": draw(st.sampled_from(("throughput", "fewest_gpus", "cost", "latency"))),
    }


@given(body=requests())
@law(few=40, many=4_000)
def test_an_offered_change_gives_the_plan_that_it_was_offered_with(body):
    try:
        answer = planned(body)
    except PlimsollError:
        return
    for offer in answer.advice:
        followed = planned(with_change(body, dict(offer.change)))
        assert offer.fits, offer
        if "fleet" in body["hardware"]:
            # Another entry of the fleet may do it better with the same change.
            assert (followed.fits, followed.meets) >= (offer.fits, offer.meets), offer
            continue
        plan = followed.plan
        assert (followed.fits, followed.verdict, followed.meets) == (offer.fits, offer.verdict, offer.meets), offer
        assert plan.layout.gpus == offer.gpus, offer
        assert plan.kv.tokens == offer.kv_tokens, offer
        assert plan.memory.peak_bytes == offer.peak_bytes, offer
        assert plan.cost_usd_per_million_output_tokens == offer.cost_usd_per_million_output_tokens, offer
        figures = plan.performance
        for name in FIGURES:
            assert (None if figures is None else getattr(figures, name)) == getattr(offer, name), (name, offer)


@given(body=requests())
@law(few=10, many=1_000)
def test_where_something_is_lacking_an_offer_that_mends_it_leaves_nothing_lacking(body):
    try:
        answer = planned(body)
    except PlimsollError:
        return
    for offer in answer.advice:
        assert offer.meets or not answer.fits, offer
        assert offer.meets or "still misses" in offer.reason, offer
