import math

import numpy as np

from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.memory.peak import FITS, NO, TIGHT, UNSURE
from plimsoll.planners.search.objectives import run_steps
from plimsoll.planners.search.ranking import Ranked, best_index, closest_index, complexity, pareto_front
from tests.planners.factories import question

G = 1e9


def ranked(rows, peaks, verdicts, seconds):
    layouts = candidates_from_rows(rows)
    return Ranked(
        gpus=layouts.gpus,
        offload=layouts.offload,
        activation_offload=layouts.activation_offload,
        complexity=complexity(layouts),
        peaks=np.array(peaks) * G,
        excess=np.array(peaks) / 80,
        verdicts=np.array(verdicts, dtype=float),
        seconds=np.array(seconds, dtype=float),
    )


EIGHT = {"data_parallel": 8}


def test_the_fastest_that_fits_wins():
    assert best_index(ranked([EIGHT] * 3, [1, 1, 99], [FITS, FITS, NO], [2.0, 1.0, math.inf]), question()) == 1


def test_a_layout_with_room_goes_before_a_faster_tight_one():
    assert best_index(ranked([EIGHT] * 2, [60, 78], [FITS, TIGHT], [2.0, 1.0]), question()) == 0


def test_of_near_equals_the_simpler_wins():
    rows = [{"data_parallel": 4, "tensor_parallel": 2}, EIGHT]
    assert best_index(ranked(rows, [60, 60], [FITS, FITS], [1.0, 1.005]), question()) == 1
    assert best_index(ranked(rows, [60, 60], [FITS, FITS], [1.0, 1.02]), question()) == 0


def test_fewest_gpus_takes_fewer_before_faster():
    rows = [{"data_parallel": 16}, EIGHT]
    assert best_index(ranked(rows, [60, 60], [FITS, TIGHT], [1.0, 2.0]), question(objective="fewest_gpus")) == 1


def test_cost_is_gpus_times_seconds():
    rows = [{"data_parallel": 16}, EIGHT]
    assert best_index(ranked(rows, [60, 60], [FITS, FITS], [1.1, 2.0]), question(objective="cost")) == 1
    assert best_index(ranked(rows, [60, 60], [FITS, FITS], [0.9, 2.0]), question(objective="cost")) == 0


def test_a_deadline_takes_the_fewest_gpus_that_keep_it():
    # 100 steps of 64 x 8,192 tokens: 1.5 s a step take 150 s, 2.5 s take 250 s.
    rows = [{"data_parallel": 32}, {"data_parallel": 16}, EIGHT]
    pool = ranked(rows, [60, 60, 60], [FITS, FITS, FITS], [1.0, 1.5, 2.5])
    budget = {"objective": "deadline", "tokens": 100 * 64 * 8192}
    assert best_index(pool, question(**budget, deadline_seconds=200.0)) == 1
    assert best_index(pool, question(**budget, deadline_seconds=250.0)) == 2
    # None keeps it: the fastest.
    assert best_index(pool, question(**budget, deadline_seconds=50.0)) == 0


def test_the_closest_needs_the_least_memory():
    assert closest_index(ranked([EIGHT] * 3, [96, 90, 99], [NO, NO, NO], [math.inf] * 3), np.full(3, True)) == 1


def test_within_the_error_band_the_closest_is_measured_and_then_simple():
    # 94 and 93 are within 5 % of 90; the least is of a stack that nobody measured.
    rows = [{"tensor_parallel": 8}, {"tensor_parallel": 8}, EIGHT]
    pool = ranked(rows, [90, 93, 94], [NO, NO, NO], [math.inf] * 3)
    assert closest_index(pool, np.array([False, True, True])) == 2
    assert closest_index(pool, np.array([False, True, False])) == 1


def test_of_near_equals_what_keeps_everything_on_the_device_wins():
    # Five moving parts on the device, none but offload on the host.
    busy = {
        "tensor_parallel": 2,
        "pipeline_parallel": 2,
        "virtual_pipeline": 2,
        "sequence_parallel": True,
        "recompute": 2,
    }
    for offloaded in ({**EIGHT, "activation_offload": True}, {**EIGHT, "zero_stage": 1, "offload": 1}):
        assert best_index(ranked([offloaded, busy], [60, 60], [FITS, FITS], [1.0, 1.009]), question()) == 1
        assert best_index(ranked([offloaded, busy], [60, 60], [FITS, FITS], [1.0, 1.02]), question()) == 0


def test_of_offloaded_near_equals_the_fastest_wins_unless_offload_was_asked_for():
    rows = [{**EIGHT, "activation_offload": True}, {"tensor_parallel": 8, "offload": 1, "zero_stage": 1}]
    pool = ranked(rows, [60, 60], [FITS, FITS], [1.005, 1.0])
    assert best_index(pool, question()) == 1
    assert best_index(pool, question(layout={"offload": "none"})) == 1
    assert best_index(pool, question(activation_offload=True)) == 0
    assert best_index(pool, question(layout={"offload": "optimizer"})) == 0


def test_of_near_equals_what_keeps_less_on_the_host_wins():
    # States beside the activations gain a two-hundredth, which nobody moves them for; three hundredths are gained.
    both = {**EIGHT, "activation_offload": True, "zero_stage": 1, "offload": 1}
    activations = {"tensor_parallel": 8, "sequence_parallel": True, "activation_offload": True}
    assert best_index(ranked([both, activations], [60, 60], [FITS, FITS], [1.0, 1.005]), question()) == 1
    assert best_index(ranked([both, activations], [60, 60], [FITS, FITS], [1.0, 1.03]), question()) == 0


def test_room_is_not_bought_with_activations_on_the_host():
    rows = [EIGHT, {**EIGHT, "activation_offload": True}, EIGHT]
    pool = ranked(rows, [78, 60, 61], [TIGHT, FITS, FITS], [1.0, 1.5, 2.0])
    two = ranked(rows[:2], [78, 60], [TIGHT, FITS], [1.0, 1.5])
    assert best_index(two, question()) == 0
    assert best_index(pool, question()) == 1
    assert best_index(two, question(activation_offload=True)) == 1


def test_room_is_not_bought_with_offload():
    # Tight on the device at 1 s, with room on the host at 3 s; with room on the device at 2 s room comes first again.
    offloaded = {**EIGHT, "zero_stage": 3, "offload": 2}
    pool = ranked([EIGHT, offloaded], [78, 40], [TIGHT, FITS], [1.0, 3.0])
    assert best_index(pool, question()) == 0
    assert best_index(ranked([EIGHT, offloaded], [78, 40], [TIGHT, FITS], [4.0, 3.0]), question()) == 1
    assert (
        best_index(ranked([EIGHT, offloaded, EIGHT], [78, 40, 60], [TIGHT, FITS, FITS], [1.0, 3.0, 2.0]), question())
        == 2
    )


def test_complexity_counts_moving_parts():
    layouts = candidates_from_rows([EIGHT, {"tensor_parallel": 8, "sequence_parallel": True}, {"pipeline_parallel": 8}])
    assert complexity(layouts).tolist() == [0, 2, 1]


def test_the_front_holds_what_nothing_beats():
    # Faster with more memory and slower with less stay; slower with more goes; more GPUs stay only where faster.
    rows = [EIGHT, EIGHT, EIGHT, {"data_parallel": 16}, {"data_parallel": 16}]
    front = pareto_front(ranked(rows, [70, 60, 75, 65, 75], [FITS] * 5, [1.0, 2.0, 3.0, 0.5, 1.5]))
    assert front == [3, 0, 1]


def test_a_long_front_is_thinned_to_twelve_with_its_ends():
    count = 40
    pool = ranked([EIGHT] * count, list(range(80, 80 - count, -1)), [FITS] * count, list(range(1, count + 1)))
    front = pareto_front(pool)
    assert len(front) == 12
    assert (front[0], front[-1]) == (0, count - 1)


def test_steps_are_rounded_up():
    assert run_steps(question(tokens=64 * 8192 * 10 + 1)) == 11
    assert run_steps(question(tokens=64 * 8192 * 10)) == 10
    assert run_steps(question()) is None


def test_what_may_lack_host_memory_goes_last_however_few_its_gpus_and_seconds():
    rows = [{"data_parallel": 1, "offload": 1}, EIGHT]
    for objective in ("throughput", "fewest_gpus"):
        assert best_index(ranked(rows, [40, 78], [UNSURE, TIGHT], [1.0, 9.0]), question(objective=objective)) == 1
    assert best_index(ranked(rows, [40, 99], [UNSURE, NO], [1.0, math.inf]), question()) == 0
