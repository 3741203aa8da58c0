from benchmarks.load.driver import Load
from benchmarks.load.overload import row


def load(*latencies: float, **refusals: tuple[float, ...]) -> Load:
    return Load(began=0.0, ended=1.0, latencies=latencies, refusals=refusals, lags=())


def test_a_row_counts_the_answers_and_the_refusals_of_all_who_are_of_a_kind():
    loads = [load(0.001, 0.003, overloaded=(0.010,)), load(0.002, overloaded=(0.030,), full=(0.020,))]
    # Three answers within 1, 2 and 3 ms and three refusals within 10, 20 and 30: half within the second of each.
    assert row("greedy", loads, 7.4) == "| greedy | 7 | 3 | 2, 3 | 1 full, 2 overloaded | 20, 30 |"


def test_a_row_without_refusals_says_so():
    assert row("polite", [load(0.001)], 1.0) == "| polite | 1 | 1 | 1, 1 | none |  |"
