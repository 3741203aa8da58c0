"""Text for people: aligned, in units they read, and nothing that drives their terminal."""

from __future__ import annotations

import pytest

from plimsoll.service.text.answers import _curve, _latency, _launch, _run_facts, _step_facts, _step_text, job_text
from plimsoll.service.text.tables import COLUMNS, gib, notes, pairs, seconds_text, table


def test_columns_are_aligned_the_first_to_the_left():
    assert table(("item", "size"), [("weights", 1), ("cache", 100)]) == (
        "  item     size\n  weights     1\n  cache     100"
    )


def test_what_is_too_wide_for_a_table_stands_above_its_row_and_is_whole():
    lines = table(("name", "size"), [("x" * 99, "1 GiB"), ("short", "2 GiB")]).splitlines()
    assert lines[1] == "  " + "x" * 99
    assert [line.strip() for line in lines[2:]] == ["1 GiB", f"short{' ' * 86}  2 GiB"]
    assert max(len(line) for line in (lines[0], *lines[2:])) == COLUMNS


def test_sentences_break_at_spaces_alone_and_never_within_quoted_commands():
    command = "`plimsoll validate 0123456789abcdef --url http://127.0.0.1:8000`"
    text = notes("Assumptions", [f"{'word ' * 12}{command} {'word ' * 9}--gpu-memory-utilization"])
    assert command in text
    assert "--gpu-memory-utilization" in text
    assert max(map(len, text.splitlines())) <= COLUMNS


def test_facts_without_a_value_are_left_out():
    assert pairs((("a", 1), ("b", None), ("c", ""))) == "  a  1"


@pytest.mark.parametrize(("size_bytes", "text"), [(0, "0.00 GiB"), (2**30, "1.00 GiB"), (None, "")])
def test_sizes_are_gib(size_bytes: int | None, text: str):
    assert gib(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (2e-7, "0.2 us"),
        (1e-3, "1 ms"),
        (0.9994, "999 ms"),
        (1, "1 s"),
        (60, "60 s"),
        (120, "2 min"),
        (3600, "1 h"),
        (86_400, "24 h"),
        (34 * 86_400, "34 days"),
    ],
)
def test_times_are_in_the_largest_unit_that_suits_them(seconds: float | None, text: str):
    assert seconds_text(seconds) == text


def test_a_name_cannot_drive_the_terminal():
    assert "\x1b" not in notes("Assumptions", ["a model named \x1b[2J"])


def test_commands_are_printed_whole_and_files_by_their_names():
    command = "torchrun " + "x" * 200
    text = _launch({"torchrun": command, "megatron": "--a 1\n--b 2", "deepspeed": {}})
    assert text == f"Launch\n  {command}\n  Files, under artifacts/NAME of the plan: megatron, deepspeed."
    assert _launch({}) == ""


def test_a_failed_job_says_why():
    job = {
        "job_id": "1", "kind": "quantize", "state": "failed", "attempts": 3, "worker": "w", "created_at": "now",
        "started_at": "now", "finished_at": "now", "result": None, "error": {"code": "x", "detail": "No memory left."},
        "progress": {"done": 1, "total": 4, "unit": "layers", "message": "layer 1"},
    }  # fmt: skip
    text = job_text(job)
    assert "Error: No memory left." in text
    assert "1 of 4 layers layer 1" in text


PERFORMANCE = {
    "ttft_seconds": 0.2, "ttft_low_seconds": 0.1, "ttft_high_seconds": 0.5, "ttft_p99_seconds": None,
    "tpot_seconds": 0.01, "tpot_low_seconds": 0.008, "tpot_high_seconds": 0.012, "tpot_p99_seconds": None,
    "output_tokens_per_second": 100.0, "concurrency": 1, "curve": [],
}  # fmt: skip


def test_latencies_are_told_with_their_bands():
    assert _latency(PERFORMANCE) == "  first token  200 ms (100 ms to 500 ms)\n  per token    10 ms (8 ms to 12 ms)"


def test_a_rates_tails_are_told_and_its_row_is_marked():
    at_a_rate = {**PERFORMANCE, "ttft_p99_seconds": 1.0, "tpot_p99_seconds": 0.02}
    assert "first token, 99 of 100  within 1 s" in _latency(at_a_rate)
    assert "per token, 99 of 100    within 20 ms" in _latency(at_a_rate)
    assert _curve(at_a_rate).splitlines()[-1].endswith("at the rate")
    assert _curve(PERFORMANCE).splitlines()[-1].endswith("asked")


STEP = {"seconds": 2.0, "low_seconds": 1.0, "high_seconds": 3.0, "tokens_per_second": 1e4, "tflops_per_gpu": 100.0}
STEP |= {"model_flops_utilization": 0.4}
RUN = {"steps": None, "seconds": None, "gpu_hours": None, "cost_usd": None, "checkpoint_bytes": 2**30}
RUN |= {"checkpoint_interval_daly_seconds": 60.0, "failures_per_day": 0.5, "goodput": 0.99, "recovery": []}
RUN |= {"expected_seconds": None, "spare_nodes": None}


@pytest.mark.parametrize(
    ("timed_runs", "text"),
    [
        ({"timed_runs": "none_on_gpu"}, "none on this GPU"),
        ({"timed_runs": "other_stacks_on_gpu"}, "of other frameworks on this GPU"),
        ({"timed_runs": "stack_on_gpu"}, None),
        ({}, None),
    ],
)
def test_a_step_that_rests_on_no_run_of_its_pair_is_marked(timed_runs: dict[str, str], text: str | None):
    assert dict(_step_facts({**STEP, **timed_runs}))["timed runs"] == text


def test_an_alternative_that_is_not_told_from_the_plan_is_marked():
    assert _step_text({"step_seconds": 2.0, "equal_within_band": True}) == "2 s, equal within the band"
    assert _step_text({"step_seconds": 2.0, "equal_within_band": False}) == "2 s"
    assert _step_text({"step_seconds": 2.0}) == "2 s"


def test_failures_are_told_with_their_bounds_where_there_are_any():
    bounds = {"failures_per_day_low": 0.3, "failures_per_day_high": 1.8, "goodput_low": 0.98, "goodput_high": 0.995}
    facts = dict(_run_facts({**RUN, **bounds}))
    assert facts["failures per day"] == "0.5 (0.3 to 1.8)"
    assert facts["goodput"] == "99.0 % (98.0 to 99.5 %)"
    assert dict(_run_facts(RUN))["failures per day"] == "0.5"
