from dataclasses import replace

import pytest

from plimsoll.planners.ground.errors import ImpossibleLayout, PlanningStopped
from plimsoll.planners.ground.hardware import GpuCount
from plimsoll.planners.jobs.job import Job, training_job
from plimsoll.planners.plans import Alternative, Layout
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.search.ways_out import way_out
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.planners.training.planning import best_layout, plan_training
from tests.planners.factories import question, small_llama


def jobs_of(asked: TrainingQuestion) -> list[Job]:
    return [training_job(asked, load_profile(asked.framework))]


def out_of(asked: TrainingQuestion) -> str:
    return way_out(asked, jobs_of, best_layout)


def small(gpus: int, batch: int, framework: str = "ddp", **changes: object) -> TrainingQuestion:
    """The small Llama has 4 heads, 2 of keys and values, and 4 layers; `ddp` has replicas alone."""
    return question(
        model=small_llama(), gpus=gpus, global_batch_size=batch, sequence_length=512, framework=framework, **changes
    )


def test_the_nearest_numbers_of_replicas_that_divide_the_batch_are_named():
    # Of 64 sequences 4 and 8 replicas have whole ones, 5 to 7 do not; 7 replicas go with 63 and 70.
    said = out_of(small(7, 64))
    assert "gpus to 4 or 8" in said
    assert "global_batch_size to 63 or 70" in said


def test_a_shard_group_that_no_number_of_gpus_mends_has_no_way_out_in_gpus():
    assert "gpus" not in out_of(small(8, 64, "fsdp2", layout={"data_parallel": 8, "shard_group": 3}))


def test_beyond_a_node_whole_nodes_are_named():
    # Replicas that divide 1,024 are powers of two: 1,000 lies between 512 and 1,024, and 1,000 replicas take 2,000.
    assert "gpus to 512 or 1024" in out_of(small(1000, 1024))
    assert "global_batch_size to 1000 or 2000" in out_of(small(1000, 1024))


def test_fixed_degrees_are_kept():
    # 48 replicas take a multiple of 48 sequences: 960 and 1,008 beside 1,000.
    asked = small(48, 1000, layout={"data_parallel": 48})
    said = out_of(asked)
    assert "global_batch_size to 960 or 1008" in said
    assert "gpus" not in said


def test_one_way_out_is_not_told_as_several():
    # 8 replicas take no 7 sequences, and 8 are the fewest that they do take; other numbers of GPUs leave 8 replicas.
    asked = small(8, 7, layout={"data_parallel": 8})
    said = out_of(asked)
    assert "global_batch_size to 8:" in said
    assert not {"each", "gpus"} & set(said.split())


def test_what_does_not_fit_is_no_way_out():
    def too_large(asked: TrainingQuestion) -> Alternative:
        return Alternative(layout=LAYOUT, peak_bytes=1, margin_bytes=-1, step_seconds=1.0, verdict="no")

    assert way_out(small(7, 64), jobs_of, too_large) == ""


def test_what_another_rule_refuses_is_no_way_out():
    def refused(asked: TrainingQuestion) -> Alternative:
        raise ImpossibleLayout("Not this one either.", rule="any")

    assert way_out(small(7, 64), jobs_of, refused) == ""


def test_planning_that_is_stopped_stops():
    def stopped(asked: TrainingQuestion) -> Alternative:
        raise PlanningStopped

    with pytest.raises(PlanningStopped):
        way_out(small(7, 64), jobs_of, stopped)


def test_a_refused_question_names_what_works_and_every_rule():
    with pytest.raises(ImpossibleLayout) as raised:
        plan_training(small(7, 64))
    assert raised.value.detail.startswith("No layout uses exactly 7 GPUs with a batch of 64")
    assert "Set gpus to 4 or 8" in raised.value.detail
    assert raised.value.broken


def test_an_offer_is_answered():
    with pytest.raises(ImpossibleLayout, match="Set gpus to 4 or 8, or global_batch_size to 63 or 70"):
        plan_training(small(7, 64))
    for gpus, batch in ((4, 64), (8, 64), (7, 63), (7, 70)):
        assert plan_training(small(gpus, batch)).fits


def test_of_a_degree_that_cuts_heads_the_whole_ones_are_named():
    with pytest.raises(ImpossibleLayout, match="Whole heads allow 1 or 2"):
        plan_training(small(8, 64, "megatron", layout={"tensor_parallel": 4}))


def test_a_range_without_a_layout_names_its_neighbours():
    asked = small(5, 64)
    between = replace(asked, hardware=replace(asked.hardware, gpus=GpuCount(minimum=5, maximum=7)))
    said = out_of(between)
    assert "gpus to 4 or 8" in said
    assert "global_batch_size" not in said


LAYOUT = Layout(
    framework="ddp",
    gpus=4,
    data_parallel=4,
    tensor_parallel=1,
    pipeline_parallel=1,
    virtual_pipeline=1,
    context_parallel=1,
    expert_parallel=1,
    sequence_parallel=False,
    zero_stage=0,
    shard_group=4,
    offload="none",
    offload_target="cpu",
    micro_batch_size=1,
    gradient_accumulation_steps=16,
    recompute="none",
    recompute_layers=None,
    activation_offload=False,
    fused_cross_entropy=False,
)
