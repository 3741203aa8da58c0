"""Whatever is asked, what the search puts first is what the cache's own check holds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.planners.questions import ServiceLevel
from plimsoll.planners.serving.replica import plan_replica
from plimsoll.planners.serving.search.search import search_layouts
from plimsoll.planners.serving.settings.settings import resolve_settings
from tests.planners.serving.factories import LLAMA_70B, MIXTRAL, model, question

MODELS = (model(), model(LLAMA_70B), model(MIXTRAL))
LEVELS = st.one_of(
    st.none(),
    st.builds(
        ServiceLevel,
        ttft_seconds=st.one_of(st.none(), st.floats(0.02, 5)),
        tpot_seconds=st.one_of(st.none(), st.floats(0.004, 0.2)),
    ),
)
ASKED = st.fixed_dictionaries(
    {
        "spec": st.sampled_from(MODELS),
        "gpus": st.sampled_from([1, 2, 4, 8, (1, 8)]),
        "max_model_len": st.sampled_from([2048, 8192, 32768]),
        "input_tokens": st.integers(1, 1500),
        "output_tokens": st.integers(1, 500),
        "concurrency": st.one_of(st.none(), st.integers(1, 3000)),
        "slo": LEVELS,
        "objective": st.sampled_from(["throughput", "fewest_gpus", "cost", "latency"]),
        "weights": st.sampled_from(["bf16", "fp8"]),
        "engine": st.sampled_from(["vllm", "sglang", "tensorrt-llm"]),
        "engine_version": st.none(),
    }
)


def searched(asked):
    """Return the question and its candidates, or None where the question itself is refused."""
    changes = dict(asked)
    made = question(changes.pop("spec"), **changes)
    try:
        return made, search_layouts(made, resolve_settings(made)).candidates
    except PlimsollError:
        return None


@settings(max_examples=60, deadline=None)
@given(ASKED)
def test_nothing_that_runs_was_refused_by_the_cache(asked):
    found = searched(asked)
    if found is None:
        return
    made, candidates = found
    for each in candidates:
        again = plan_replica(made, each.settings, each.replica.degrees)
        assert (again.verdict, again.places) == (each.replica.verdict, each.replica.places)
        if each.deployment is not None:
            assert again.fits
            assert again.kv.max_concurrency >= 1
            assert each.deployment.places == again.places >= 1
        if each.meets_concurrency:
            assert each.concurrency <= again.places * each.replicas
    # A candidate that fits stands before every one that does not.
    fits = [each.replica.fits for each in candidates]
    assert fits == sorted(fits, reverse=True)


@settings(max_examples=40, deadline=None)
@given(ASKED)
def test_a_service_level_is_held_at_the_highest_throughput_that_holds_it(asked):
    found = searched({**asked, "concurrency": None, "objective": "throughput"})
    if found is None or found[0].slo in (None, ServiceLevel()):
        return
    candidates = found[1]
    best = candidates[0]
    if not best.is_satisfying or best.deployment is None:
        assert not any(each.is_satisfying for each in candidates)
        return
    kept = [each for each in candidates if each.is_satisfying and each.replica.verdict == best.replica.verdict]
    if not best.question.hardware.gpus.is_free:
        assert best.output_tokens_per_second == max(each.output_tokens_per_second for each in kept)
    slo = best.question.slo
    # Every replica has as many, and would not keep it with one more.
    beyond = best.deployment.at(best.concurrency + best.deployment.most_running // best.deployment.places)
    is_full = best.concurrency == best.deployment.most_running
    breaks_first = slo.ttft_seconds is not None and beyond.ttft_seconds > slo.ttft_seconds
    breaks_token = slo.tpot_seconds is not None and beyond.tpot_seconds > slo.tpot_seconds
    assert is_full or breaks_first or breaks_token
