import pytest

from plimsoll.planners.ground.errors import ImpossibleLayout
from plimsoll.planners.search.violations import check_fixed, every_broken_rule
from tests.planners.factories import question


@pytest.mark.parametrize(
    ("layout", "rule", "pointer"),
    [
        ({"tensor_parallel": 3, "data_parallel": 1}, "degrees_multiply_to_gpus", "/layout/tensor_parallel"),
        ({"tensor_parallel": 4, "pipeline_parallel": 4}, "degrees_multiply_to_gpus", "/layout"),
        ({"data_parallel": 16}, "degrees_multiply_to_gpus", "/layout/data_parallel"),
        (
            {"data_parallel": 2, "tensor_parallel": 2, "pipeline_parallel": 1, "context_parallel": 1},
            "degrees_multiply_to_gpus",
            # 2 tensor-parallel ranks go into 8 GPUs, 4 times.
            "/layout/data_parallel",
        ),
        ({"zero_stage": 4}, "zero_stage_exists", "/layout/zero_stage"),
        ({"zero_stage": -1}, "zero_stage_exists", "/layout/zero_stage"),
        ({"tensor_parallel": 0}, "degrees_are_positive", "/layout/tensor_parallel"),
        ({"virtual_pipeline": 20, "pipeline_parallel": 2}, "stages_have_layers", "/layout/pipeline_parallel"),
        ({"data_parallel": 8, "shard_group": 3}, "shard_group_divides", "/layout/shard_group"),
        ({"data_parallel": 2, "shard_group": 4}, "shard_group_divides", "/layout/shard_group"),
        ({"expert_parallel": 2}, "experts_divide", "/layout/expert_parallel"),
        (
            {"sequence_parallel": True, "tensor_parallel": 1},
            "sequence_parallel_needs_tensor",
            "/layout/sequence_parallel",
        ),
    ],
)
def test_layouts_that_cannot_exist_name_rule_and_field(layout, rule, pointer):
    with pytest.raises(ImpossibleLayout) as caught:
        check_fixed(question(layout=layout))
    assert (caught.value.rule, caught.value.pointer) == (rule, pointer)


def test_heads_that_do_not_divide_are_named_with_their_number():
    with pytest.raises(ImpossibleLayout, match="8 key-value heads") as caught:
        check_fixed(question(gpus=16, layout={"tensor_parallel": 16}))
    assert caught.value.pointer == "/layout/tensor_parallel"


def test_one_degree_is_named_without_a_product():
    with pytest.raises(
        ImpossibleLayout, match=r"^tensor_parallel 3 does not divide 8 GPUs\. tensor_parallel can be 1, 2, 4 or 8\.$"
    ):
        check_fixed(question(layout={"tensor_parallel": 3}))


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        (8, "there are 8 GPUs. tensor_parallel can be 1, 2, 4 or 8."),
        # 11 is prime; 48 has ten divisors.
        (11, "there are 11 GPUs. tensor_parallel can be 1 or 11."),
        (48, "there are 48 GPUs. tensor_parallel must be a divisor of 48."),
    ],
)
def test_a_degree_of_more_than_the_gpus_is_told_which_would_do(gpus, words):
    with pytest.raises(ImpossibleLayout) as caught:
        check_fixed(question(gpus=gpus, layout={"tensor_parallel": 64}))
    assert words in caught.value.broken[0].detail


def test_all_contradictions_are_raised_together():
    # 3 goes neither into 8 GPUs nor into 32 and 8 heads, and a dense model has one feed-forward.
    with pytest.raises(ImpossibleLayout) as caught:
        check_fixed(question(layout={"tensor_parallel": 3, "expert_parallel": 2}))
    rules = [broken.rule for broken in caught.value.broken]
    assert rules == ["degrees_multiply_to_gpus", "heads_divide", "experts_divide"]


@pytest.mark.parametrize(("batch", "works"), [(15, False), (16, True), (17, False)])
def test_the_global_batch_is_whole_micro_batches_of_every_replica(batch: int, works: bool):
    asked = question(global_batch_size=batch, micro_batch_size=2, layout={"data_parallel": 8})
    if works:
        check_fixed(asked)
        return
    with pytest.raises(ImpossibleLayout, match=str(batch)) as caught:
        check_fixed(asked)
    assert caught.value.pointer == "/layout/data_parallel"


def test_a_micro_batch_that_does_not_divide_is_its_own_field_s_fault():
    with pytest.raises(ImpossibleLayout) as caught:
        check_fixed(question(micro_batch_size=5))
    assert caught.value.pointer == "/training/micro_batch_size"


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        # One replica of one stage on 3 GPUs leaves 3 tensor-parallel ranks, whoever fixed them.
        ({"data_parallel": 1, "pipeline_parallel": 1, "context_parallel": 1}, "the 32 attention heads or the 8"),
        ({"tensor_parallel": 3}, "the 32 attention heads nor the 8"),
    ],
)
def test_heads_are_told_of_degrees_that_follow_from_others_too(layout, words):
    broken = every_broken_rule(question(gpus=3, global_batch_size=3, framework="megatron", layout=layout))
    assert [words in violation.detail for violation in broken if violation.rule == "heads_divide"] == [True]


def test_a_rule_that_fixed_degrees_broke_is_not_told_again_of_the_layouts():
    broken = every_broken_rule(question(layout={"tensor_parallel": 3}))
    assert [violation.rule for violation in broken].count("heads_divide") == 1
