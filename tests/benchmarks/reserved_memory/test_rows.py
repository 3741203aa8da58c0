"""Measured runs with what each way says of them."""

import functools

import pytest

from benchmarks.accuracy.asking import Service, question_of
from benchmarks.accuracy.peak_memory.cases import memory_cases
from benchmarks.accuracy.peak_memory.predictions import memory_predictions
from benchmarks.reserved_memory.rows import PLAN, TRACE_EXPANDABLE, TRACE_FIXED, measured_row
from benchmarks.reserved_memory.traced import traced_run
from plimsoll.planners.training.planning import plan_without_advice

RESERVED = "mem-simumax-llama3_405b_l4_tp8_pp1_dp1_mbc8_cef-reserved"
PIPELINE, NANOTRON = "mem-titan-t5-405b-Interleaved1F1B", "nanotron-11"


@functools.cache
def cases():
    return {case.case_id: case for case in memory_cases().cases}


def case(name):
    return cases()[name]


@pytest.mark.parametrize("name", [RESERVED, PIPELINE, NANOTRON])
def test_the_plan_s_figure_is_the_accuracy_page_s(name):
    (one,) = memory_predictions([case(name)], Service())
    row = measured_row(case(name), with_trace=False)
    assert row.told[PLAN] == one.predicted_bytes
    assert row.allocated_bytes <= row.main_bytes + row.other_bytes


def test_allocated_peaks_are_no_rows():
    assert measured_row(case(RESERVED.replace("-reserved", "-alloc")), with_trace=False) is None


def test_a_run_is_traced_where_its_stack_is():
    row = measured_row(case(RESERVED), with_trace=True)
    assert row.allocated_bytes < row.told[TRACE_EXPANDABLE] <= row.told[TRACE_FIXED] < row.measured_bytes
    plan = plan_without_advice(question_of(case(NANOTRON).request)).plan
    assert traced_run(case(NANOTRON), plan.layout, plan.memory) is None
