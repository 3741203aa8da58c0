import dataclasses

from benchmarks.search.cases import HTTP_CASES
from benchmarks.search.rates import measured


def test_a_rate_counts_what_one_search_considers():
    case = dataclasses.replace(HTTP_CASES[0], framework="litgpt")
    once, twice = measured(case, 1), measured(case, 2)
    assert once is not None
    assert twice is not None
    assert once.layouts == twice.layouts > once.fitting > 0
    assert once.extra_bytes > 0
    assert 0 < once.fastest_seconds <= once.cpu_seconds


def test_a_case_without_any_layout_has_no_rate():
    # One sequence a step cannot be shared by replicas, and litgpt has only replicas.
    assert measured(dataclasses.replace(HTTP_CASES[0], framework="litgpt", global_batch_size=1), 1) is None
