"""Tests of how deployments are put in order."""

from __future__ import annotations

import dataclasses

from benchmarks.accuracy.serving.latencies import LatencyCase
from benchmarks.accuracy.serving.ranking import ranking_lines
from plimsoll.planners.serving.traffic import Traffic
from tests.planners.serving.times.test_replica_work import work_at


def case(deployment: str, token_seconds: float, batch: float = 8) -> LatencyCase:
    return LatencyCase(
        engine="vllm",
        family="Llama",
        gpu="h100_sxm",
        source="NVIDIA",
        deployment=deployment,
        work=work_at(),
        question=None,
        settings=None,
        replica=None,
        batch=batch,
        traffic=Traffic(input_tokens=1024, output_tokens=128),
        token_seconds=token_seconds,
        first_token_seconds=None,
    )


ONE = case("vllm|0.12|Llama|h100_sxm|fp8|1|1|1|1", 0.010)
TWO = case("vllm|0.12|Llama|h100_sxm|fp8|2|1|1|1", 0.006)
OTHER = case("sglang|0.5.9|Llama|h100_sxm|fp8|1|1|1|1", 0.0102)
LOADED = dataclasses.replace(TWO, batch=64, token_seconds=0.012)


def lines(planned) -> list[list[str]]:
    return [line.split() for line in ranking_lines([ONE, TWO, OTHER, LOADED], planned)]


def test_pairs_of_one_load_that_lie_apart_are_put_in_order():
    # ONE and OTHER are 2 % apart, LOADED has another load: TWO with each of the others is left.
    found = lines(lambda each: each.token_seconds)
    assert found[1:] == [["degrees", "1", "100%"], ["anything", "2", "100%"]]


def test_an_order_that_is_wrong_is_counted():
    found = lines(lambda each: 1.0 if each is TWO else 0.5 if each is ONE else 2.0)
    assert found[-1] == ["anything", "2", "50%"]
