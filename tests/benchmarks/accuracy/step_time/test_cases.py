from collections import Counter

import pytest

from benchmarks.accuracy.step_time.cases import all_cases

CASES, LEFT_OUT = all_cases()


def case(table: str):
    return next(one for one in CASES if one.table == table)


def test_every_row_is_a_case_or_is_counted_by_its_reason():
    assert len(CASES) + sum(LEFT_OUT.values()) == 405 + 1619


def test_about_three_of_ten_are_held_out():
    assert sum(one.held_out for one in CASES) / len(CASES) == pytest.approx(0.3, abs=0.05)


def test_a_configuration_published_twice_falls_on_one_side():
    sides: dict[str, set[bool]] = {}
    for one in CASES:
        sides.setdefault(one.identity, set()).add(one.held_out)
    assert max(Counter(len(side) for side in sides.values())) == 1


def test_published_rates_become_seconds_by_their_own_count():
    # Narayanan et al. 2021, table 1, 1.7B: 96 x 512 x 2048 x 24 x 2304^2 x (1 + 2048/13824 + 51200/884736) operations
    # on 32 GPUs at 137 TFLOP/s: 1.5470e16 / 4.384e15 = 3.529 s.
    assert case("sc21-2021-04-1.7B").seconds == pytest.approx(3.529, abs=0.001)


def test_what_a_source_did_not_print_stays_open():
    assert len(case("sc21-2021-04-1.7B").layout["micro_batch_size"]) > 1
    assert not case("sc21-2021-04-1.7B").config_is_whole
