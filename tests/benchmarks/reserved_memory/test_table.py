"""The tables, of rows with round numbers."""

from types import SimpleNamespace

from benchmarks.reserved_memory.rows import PLAN, TRACE_EXPANDABLE, TRACE_FIXED, WAYS, Row
from benchmarks.reserved_memory.table import lines, row_lines


def row(table, plan, *, others=0.0, traced=None):
    told = dict.fromkeys(WAYS, 100.0) | {PLAN: plan}
    for way in (TRACE_FIXED, TRACE_EXPANDABLE):
        if traced is None:
            del told[way]
        else:
            told[way] = traced
    return Row(
        case=SimpleNamespace(case_id=f"mem-titan-{table}-x", stack="torchtitan"),
        measured_bytes=100.0,
        allocated_bytes=80.0,
        main_bytes=80.0,
        other_bytes=others,
        told=told,
    )


def test_a_stack_has_its_mean_distance_bias_and_worst_row():
    found = list(lines([row("t1", 90.0), row("t2", 104.0)]))
    assert found[1].startswith("torchtitan, 2 rows")
    assert "7.0% (-3.0%), -10.0%" in found[1]


def test_traced_rows_have_a_line_of_their_own_where_not_all_are():
    found = list(lines([row("t1", 90.0), row("t2", 104.0, traced=98.0)]))
    assert found[1].rstrip().endswith("-")
    assert found[2].startswith("  1 traced")
    assert "2.0% (-2.0%), -2.0%" in found[2]


def test_factors_are_those_of_the_other_tables():
    # By the other table: 100 / 80 of all; (100 - 10) / 80 of the main pool, and 10 besides.
    found = list(lines([row("t1", 100.0, others=10.0), row("t2", 100.0, others=20.0)]))
    assert found[-3] == "torchtitan, each of 2 tables by the others' median"
    assert "0.0%" in found[-2]
    # 90 / 80 x 80 + 20 = 110 and 80 / 80 x 80 + 10 = 90.
    assert "10.0% (+0.0%)" in found[-1]


def test_every_row_is_told_with_what_was_not_traced_left_open():
    (line,) = row_lines([row("t1", 90.0)])
    assert "-10.0%" in line
    assert line.rstrip().endswith("-")
