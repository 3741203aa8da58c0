import dataclasses

import pytest

from plimsoll.planners.layouts.candidates import layout_of
from plimsoll.planners.timing.efficiency import StalledRuns, load_efficiency
from plimsoll.planners.timing.stalls import risks
from tests.planners.factories import hardware
from tests.planners.timing.efficiencies import plain
from tests.planners.training_cases import job, memory, one_layout, step

BASE = {"nodes": 1, "tensor_parallel": 1, "memory_fraction": 0.0}
STALLED = (
    StalledRuns(**{**BASE, "nodes": 2}, with_pipeline=True, runs=9, stalled=9, described="on two nodes"),
    StalledRuns(**{**BASE, "tensor_parallel": 4}, with_pipeline=True, runs=8, stalled=7, described="of four ranks"),
    StalledRuns(**{**BASE, "memory_fraction": 0.8}, with_pipeline=True, runs=6, stalled=5, described="nearly full"),
    StalledRuns(**{**BASE, "nodes": 2}, with_pipeline=False, runs=4, stalled=3, described="on two nodes"),
)


def told(fullness: float = 0.5, stalled_runs=STALLED, **degrees):
    """The risks of one layout whose peak is this part of the limit."""
    asked = job("reference")
    layout = layout_of(one_layout(**degrees), 0, asked)
    found = memory("reference", layout={"data_parallel": 8, "zero_stage": 3})
    found = dataclasses.replace(found, peak_bytes=int(fullness * found.limit_bytes))
    return risks(layout, step("reference"), found, hardware(8), plain(stalled_runs=stalled_runs))


@pytest.mark.parametrize(
    ("degrees", "fullness", "counted"),
    [
        ({"pipeline_parallel": 16}, 0.5, "9 of 9 measured reference pipelines on two nodes"),
        ({"pipeline_parallel": 2, "tensor_parallel": 4}, 0.5, "7 of 8 measured reference pipelines of four ranks"),
        ({"pipeline_parallel": 2, "tensor_parallel": 2}, 0.81, "5 of 6 measured reference pipelines nearly full"),
        ({"tensor_parallel": 2, "data_parallel": 8}, 0.5, "3 of 4 measured reference runs on two nodes"),
    ],
)
def test_a_plan_is_told_of_the_measured_runs_it_is_like(degrees, fullness, counted):
    (sentence,) = told(fullness, **degrees)
    assert sentence.startswith(counted)


def test_a_plan_unlike_all_that_stalled_is_told_nothing():
    assert told(0.79, pipeline_parallel=2, tensor_parallel=2) == ()
    assert told(data_parallel=8) == ()


def test_a_nearly_full_plan_is_told_so_by_every_stack():
    assert told(0.88, (), data_parallel=8) == ()
    (sentence,) = told(0.93, (), data_parallel=8)
    assert sentence.startswith("The plan uses 93% of the memory the GPU offers.")
    # What does not fit at all is not nearly full.
    assert told(1.1, (), data_parallel=8) == ()


def test_nanotron_s_pipelines_count_what_the_sweep_showed():
    runs = [one for one in load_efficiency("nanotron").stack.stalled_runs if one.with_pipeline]
    # 620 pipelines of 855 runs, each counted once, the widest conditions last.
    assert sum(one.runs for one in runs) == 620
    assert runs[0].stalled == runs[0].runs == 92
    assert all(0 < one.stalled <= one.runs for one in runs)
