import numpy as np
import pytest

from planners.errors import ImpossibleLayout, PlanningStopped
from planners.layout.axes import candidate_grid
from planners.layout.candidates import COLUMNS
from planners.layout.rules import obey
from planners.layout.search import search
from planners.memory.job import training_job
from planners.memory.peak import peak_bytes
from planners.memory.profile import profiles_to_search
from planners.timing.efficiency import load_efficiency
from planners.timing.step import step_seconds
from tests.planners.factories import LLAMA_3_70B, llama, question, small_llama
from tests.planners.training_cases import job


def found(framework: str = "fsdp2", **changes):
    asked = question(framework=framework, **changes)
    jobs = [training_job(asked, profile) for profile in profiles_to_search(framework)]
    return search(asked, jobs)


def chosen_layouts(result):
    number, index = result.chosen
    return result.pools[number].layouts.take([index])


def one_by_one(framework: str, **changes):
    """Return the layouts that obey all rules, their peaks and seconds, each worked out in a plain list."""
    asked, through = question(framework=framework, **changes), job(framework, **changes)
    listed = candidate_grid(asked, through, np.array([asked.hardware.gpus.minimum])).every()
    allowed = listed.take(obey(listed, through).allowed)
    peaks = peak_bytes(allowed, through)
    seconds = step_seconds(allowed, through, asked.hardware, load_efficiency(framework)).total
    return allowed, peaks, np.where(peaks <= asked.hardware.limit_bytes, seconds, np.inf), len(listed)


@pytest.mark.parametrize("framework", ["fsdp2", "megatron", "nanotron", "accelerate", "reference"])
def test_the_grid_finds_what_a_list_of_the_same_layouts_holds(framework: str):
    allowed, peaks, seconds, everything = one_by_one(framework)
    result = found(framework)
    assert result.considered == len(allowed)
    assert result.excluded == everything - len(allowed)
    assert result.fitting == np.count_nonzero(np.isfinite(seconds))
    (pool,) = result.pools
    rows = np.stack([getattr(allowed, name).astype(np.int64) for name in COLUMNS], axis=1).tolist()
    known = {tuple(row): place for place, row in enumerate(rows)}
    kept = np.stack([getattr(pool.layouts, name).astype(np.int64) for name in COLUMNS], axis=1).tolist()
    places = [known[tuple(row)] for row in kept]
    assert pool.peaks.tolist() == peaks[places].tolist()
    assert pool.seconds.tolist() == seconds[places].tolist()
    assert np.isfinite(seconds).any() == result.fits
    assert pool.seconds.min() == seconds.min()


def test_the_same_question_has_the_same_answer():
    assert found("any").chosen == found("any").chosen


def test_fewest_gpus_stops_at_the_first_count_that_fits():
    # 16 bytes for each of 8.03e9 parameters are 119.7 GiB: one card cannot, four hold a quarter each.
    gpus = int(chosen_layouts(found("fsdp2", gpus=None)).gpus[0])
    assert gpus in (2, 3, 4)
    assert not found("fsdp2", gpus=gpus - 1).fits
    assert found("fsdp2", gpus=gpus).fits


def test_nothing_fits_gives_the_closest():
    result = found("fsdp2", gpus=1)
    assert not result.fits
    number, index = result.chosen
    assert result.pools[number].peaks[index] == min(pool.peaks.min() for pool in result.pools)
    assert result.alternatives == ()


def test_offload_is_found_once_nothing_else_fits():
    result = found("deepspeed", gpus=2)
    assert result.fits
    assert chosen_layouts(result).offload[0] > 0


def test_offload_that_was_refused_is_not_found():
    assert not found("deepspeed", gpus=2, layout={"offload": "none"}).fits


def test_rules_that_leave_nothing_name_the_commonest():
    # One sequence a step cannot be shared by eight replicas, and this stack has only replicas.
    with pytest.raises(ImpossibleLayout) as caught:
        found("ddp", global_batch_size=1)
    assert caught.value.rule == "batch_divides"
    assert caught.value.pointer == "/layout/data_parallel"


def test_degrees_that_cannot_multiply_are_named():
    with pytest.raises(ImpossibleLayout, match="multiply"):
        found("ddp", layout={"data_parallel": 4})


def test_a_range_uses_more_gpus_for_more_speed():
    result = found("fsdp2", model=small_llama(hidden_size=1024, intermediate_size=4096), gpus=(1, 8))
    assert chosen_layouts(result).gpus[0] == 8


def test_a_thousand_gpus_are_searched_over_every_axis():
    result = found("any", model=llama(LLAMA_3_70B), gpus=1024, global_batch_size=2048)
    assert result.fits
    assert result.considered > 5_000


def test_a_search_that_nobody_waits_for_stops_before_its_next_chunk():
    asked = question(framework="any")
    jobs = [training_job(asked, profile) for profile in profiles_to_search("any")]
    answers = iter([False, False, True])
    with pytest.raises(PlanningStopped):
        search(asked, jobs, lambda: next(answers))
    assert next(answers, None) is None
