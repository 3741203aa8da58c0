import pytest

from planners.errors import ImpossibleLayout
from planners.layout.search import search
from planners.memory.job import training_job
from planners.memory.profile import profiles_to_search
from tests.planners.factories import LLAMA_3_70B, llama, question, small_llama


def found(framework: str = "fsdp2", **changes):
    asked = question(framework=framework, **changes)
    jobs = [training_job(asked, profile) for profile in profiles_to_search(framework)]
    return search(asked, jobs)


def chosen_layouts(result):
    number, index = result.chosen
    return result.pools[number].layouts.take([index])


def test_counts_are_of_layouts_whose_memory_was_evaluated():
    result = found()
    assert result.considered == sum(len(pool.layouts) for pool in result.pools)
    assert 0 < result.fitting <= result.considered
    assert result.excluded > 0


def test_the_same_question_has_the_same_answer():
    assert found("any").chosen == found("any").chosen


def test_fewest_gpus_stops_at_the_first_count_that_fits():
    # 16 bytes for each of 8.03e9 parameters are 119.7 GiB: one card cannot, two or three could.
    gpus = int(chosen_layouts(found("fsdp2", gpus=None)).gpus[0])
    assert gpus in (2, 3)
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
