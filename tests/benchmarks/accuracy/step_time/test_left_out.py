"""Fits without a source or a card."""

import dataclasses

import numpy as np
import pytest

from benchmarks.accuracy.judged import Judged
from benchmarks.accuracy.step_time.cases import all_cases
from benchmarks.accuracy.step_time.fit import PARAMETERS, Fit, start_values
from benchmarks.accuracy.step_time.left_out import _as_answered, band_lines, source_of, start_without
from plimsoll.planners.stacks.profile import textbook
from plimsoll.planners.timing.efficiency import load_efficiency

CASES, _ = all_cases()
BY_TABLE = {case.table: case for case in CASES}


def place(file, key):
    return next(index for index, one in enumerate(PARAMETERS) if (one.file, one.key) == (file, key))


def test_a_source_is_left_out_with_all_its_tables():
    sources = {case.source for case in CASES if source_of(case) == "Megatron-Bridge"}
    assert sources == {"Megatron-Bridge, FP8", "Megatron-Bridge, experts", "Megatron-Bridge, experts, FP8"}


def test_what_only_one_source_tells_of_is_the_textbook_s_without_it():
    others = Fit([case for case in CASES if source_of(case) == "vTrain"])
    values, shipped = start_without(others), start_values()
    assert values[place("composer", "traffic_multiple")] == load_efficiency(textbook().name).stack.traffic_multiple
    assert values[place("composer", "traffic_multiple")] != shipped[place("composer", "traffic_multiple")]
    # vTrain's runs are Megatron's on A100.
    kept = [place("megatron", "traffic_multiple"), place("ampere", "matmul_peak_fraction")]
    np.testing.assert_array_equal(values[kept], shipped[kept])


def test_choices_that_a_source_left_open_are_those_of_the_answer():
    case = BY_TABLE["sc21-2021-04-1.7B"]
    layout = {name: values[0] for name, values in case.layout.items()} | {
        "context_parallel": 1,
        "expert_parallel": 1,
        "micro_batch_size": 4,
        "recompute": "full",
        "recompute_layers": 3,
        "recompute_modules": ["mlp"],
        "overlap": {"expert_parallel": True},
    }
    chosen = _as_answered(case, {"plan": {"layout": layout}})
    assert chosen.layout["micro_batch_size"] == (4,)
    assert chosen.layout["full_layers"] == (3,)
    assert chosen.layout["expert_overlap"] == (1,)
    assert chosen.recompute_modules == ("mlp",)
    assert dataclasses.replace(chosen, layout=case.layout, recompute_modules=()) == case


def test_bands_are_counted_by_stack_and_experts():
    judged = [
        Judged(
            source="a page",
            stack="megatron",
            gpu="h100-sxm-80gb",
            kind=kind,
            is_seen=False,
            ratio=ratio,
            band=(0.9, 1.1),
        )
        # Measured over estimated: 1, 0.8; and 2.
        for kind, ratio in (("dense", 1.0), ("dense", 1.25), ("experts", 0.5))
    ]
    _, dense, experts = band_lines(judged)
    # Mean error of 0 and 25 %, half in the band; the median lies at 0.9.
    assert dense.split()[:5] == ["megatron", "2", "12.5%", "0.81", "0.90"]
    assert dense.split()[-1] == "50%"
    assert experts.split()[2:4] == ["1", "50.0%"]


@pytest.mark.parametrize("number", [0, 1])
def test_a_fit_tells_each_case_apart(number):
    fit = Fit([BY_TABLE["sc21-2021-04-1.7B"], BY_TABLE["sc21-2021-04-145.6B"]])
    assert np.isfinite(fit.both(start_values())[0][number])
