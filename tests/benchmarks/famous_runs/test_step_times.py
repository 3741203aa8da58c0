from __future__ import annotations

from typing import Any

import pytest

from benchmarks.famous_runs.record import Published
from benchmarks.famous_runs.step_times import conversion, published_step_seconds
from plimsoll.planners.families import describe_config
from tests.benchmarks.famous_runs.records import a_run

GPT = describe_config(
    {"model_type": "gpt2", "n_layer": 2, "n_embd": 100, "n_head": 1, "n_positions": 1000, "vocab_size": 1000},
    name="a small one",
)


def seconds(**figures: Any) -> float | None:
    return published_step_seconds(a_run(published=Published(words="", **figures)), GPT)


def test_a_step_time_is_taken_as_it_is():
    assert seconds(seconds=3.5) == 3.5


def test_tokens_per_second_are_of_one_gpu():
    # 4,000 tokens over 8 GPUs of 250 tokens/s.
    assert seconds(tokens_per_second_per_gpu=250.0) == 2.0


def test_gpu_hours_are_shared_among_the_tokens():
    # 8 GPU hours are an hour on 8 GPUs for 4M tokens: a thousandth of it is a step of 4,000.
    assert seconds(gpu_hours=8.0, tokens=4e6) == pytest.approx(3.6)


def test_counted_recomputation_is_narayanans_formula():
    # 96 x 4,000 tokens x 2 layers x 100² x (1 + 1000/600 + 1000/3200) = 2.288e10, at 1 GFLOP/s on each of 8.
    assert seconds(teraflops_per_gpu=1e-3, counting="recomputation") == pytest.approx(2.86)


def test_causal_attention_is_half_of_the_whole():
    causal, whole = (
        seconds(teraflops_per_gpu=1.0, counting=f"{count} attention") or 0.0 for count in ("causal", "whole")
    )
    # Scores and their product with values: 4 x 1,000 x 100 a token and layer, of which 499.5 positions are left out;
    # three times for the backward pass.
    assert whole - causal == pytest.approx(3 * 4000 * 2 * 4 * 499.5 * 100 / 1e12 / 8)


def test_a_utilization_is_a_part_of_its_peak():
    rate = seconds(teraflops_per_gpu=100.0, counting="whole attention")
    assert seconds(utilization_fraction=0.5, peak_teraflops=200.0, counting="whole attention") == rate


def test_memory_alone_has_no_step_time():
    assert seconds() is None


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({"tokens_per_second_per_gpu": 1.0}, "a step's tokens"),
        ({"gpu_hours": 1.0, "tokens": 1.0}, "GPU hours"),
        ({"teraflops_per_gpu": 1.0, "counting": "recomputation"}, "recomputation counted"),
    ],
)
def test_a_conversion_is_told(figures: dict[str, Any], expected: str):
    assert expected in str(conversion(a_run(published=Published(words="", **figures))))


def test_seconds_and_memory_need_no_conversion():
    assert conversion(a_run()) is None
    assert conversion(a_run(published=Published(words="it ran"))) is None
