from benchmarks.famous_runs.highest_utilization import highest_utilizations, table_text
from plimsoll.planners.timing.utilization import TABLE


def test_the_planner_s_table_is_of_the_runs_that_are_there():
    assert TABLE.read_text(encoding="utf-8") == table_text(highest_utilizations())
