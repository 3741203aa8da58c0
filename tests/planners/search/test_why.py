import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.errors import ImpossibleLayout
from plimsoll.planners.plans import Comparison
from plimsoll.planners.questions import LayoutRequest, NamedLayout, Recompute, TrainingQuestion
from plimsoll.planners.training.planning import plan_training, plan_without_advice
from tests.planners.factories import LLAMA_3_70B, gpu, hardware, llama, question, small_mixtral
from tests.properties.trainings import described


def compared(*, degrees=None, named=None, **asked) -> Comparison:
    """Return how one named layout compares with the plan."""
    one = NamedLayout(layout=LayoutRequest(**(degrees or {})), **(named or {}))
    (comparison,) = plan_training(question(**asked, compare=(one,))).comparisons
    return comparison


def rules(comparison: Comparison) -> list[str]:
    return [reason.rule for reason in comparison.reasons]


def detail(comparison: Comparison, rule: str) -> str:
    """Return what is said of a rule that is broken once."""
    (found,) = (reason.detail for reason in comparison.reasons if reason.rule == rule)
    return found


def test_heads_that_do_not_divide_are_told_with_all_other_broken_rules():
    comparison = compared(degrees={"tensor_parallel": 3})
    assert (comparison.outcome, comparison.layout) == ("excluded", None)
    assert rules(comparison) == ["degrees_multiply_to_gpus", "heads_divide", "matrices_divide"]
    assert "32 attention heads nor the 8 key-value heads" in detail(comparison, "heads_divide")
    assert {reason.pointer for reason in comparison.reasons} == {"/compare/0/tensor_parallel"}


def test_a_layout_without_room_for_what_waits_for_its_copies_is_told_so():
    asked = TrainingQuestion(
        model=described("Qwen/Qwen3-235B-A22B"),
        # 87 GiB, of which the layout has 85 at most, and 89 with what waits.
        hardware=hardware(1000, gpu=catalogue().gpu("h200-sxm-141gb"), reserve_bytes=round(52.5 * 2**30)),
        framework="megatron",
        sequence_length=4096,
        global_batch_size=4000,
        compare=(
            NamedLayout(
                layout=LayoutRequest(
                    data_parallel=200, pipeline_parallel=5, virtual_pipeline=10, expert_parallel=8, offload="none"
                ),
                micro_batch_size=2,
                recompute=Recompute(mode="selective", modules=("layernorm", "moe")),
                activation_offload=True,
            ),
        ),
    )
    (comparison,) = plan_without_advice(asked).comparisons
    assert comparison.outcome == "tight"
    assert "more that wait for their copies to the host" in detail(comparison, "margin")


def test_what_a_framework_lacks_is_told_field_by_field():
    comparison = compared(degrees={"tensor_parallel": 2, "pipeline_parallel": 2}, named={"framework": "ddp"})
    lacking = [reason.pointer for reason in comparison.reasons if reason.rule == "framework"]
    assert lacking == ["/compare/0/tensor_parallel", "/compare/0/pipeline_parallel"]


def test_a_rule_that_only_a_search_meets_is_told_with_its_numbers():
    # 5 stages divide 10 GPUs and leave 2 replicas of 64 sequences, but 5 x 2 chunks do not divide 32 layers, which the
    # textbook has equal where they are interleaved: 4 x 2 and 8 x 2 do. 2 stages would leave 10 GPUs 5 replicas, not 2.
    degrees = {"pipeline_parallel": 5, "virtual_pipeline": 2, "data_parallel": 2}
    comparison = compared(gpus=10, framework="reference", degrees=degrees)
    assert detail(comparison, "pipeline_layout_divides") == (
        "32 layers cannot be divided into 5 x 2 = 10 chunks by pipeline_layout behind-first: virtual_pipeline 1 can, "
        "and on other numbers of GPUs pipeline_parallel 4 or 8."
    )


def test_equal_stages_that_cannot_be_are_told_with_those_that_can():
    # 126 layers, as Llama 3.1 405B has them: 14 x 9 and 18 x 7, but not 16 x 8.
    model = llama(num_hidden_layers=126)
    degrees = {"pipeline_parallel": 16, "pipeline_layout": "even"}
    comparison = compared(gpus=16, model=model, degrees=degrees, named={"framework": "megatron"})
    assert detail(comparison, "pipeline_layout_divides") == (
        "126 layers cannot be divided into 16 stages by pipeline_layout even: pipeline_parallel 2 or pipeline_layout "
        "Et*7|(t*8|)*14t*7L can, and on other numbers of GPUs pipeline_parallel 14 or 18."
    )


def test_degrees_that_the_gpus_form_are_not_told_again_for_others():
    # 126 layers and a loss are 127 blocks, a prime: 96 GPUs form one stage of them, and 127 GPUs as many.
    degrees = {"pipeline_parallel": 8, "pipeline_layout": "account-for-loss"}
    model = llama(num_hidden_layers=126)
    asked = {"gpus": 96, "global_batch_size": 96, "model": model}
    comparison = compared(**asked, degrees=degrees, named={"framework": "megatron"})
    assert detail(comparison, "pipeline_layout_divides").endswith(
        ": pipeline_parallel 1 or pipeline_layout Et*15|(t*16|)*6t*15L can, and on other numbers of GPUs "
        "pipeline_parallel 127."
    )


@pytest.mark.parametrize(("stages", "of_gpus"), [(33, 11), (34, 17)])
def test_stages_that_no_way_divides_into_are_told_with_the_nearest_that_one_does(stages: int, of_gpus: int):
    # 32 layers are one on each of 32 stages; embedding and head alone are stages only where a client lists them.
    asked = {"gpus": stages, "global_batch_size": 66, "framework": "megatron", "layout": {"pipeline_parallel": stages}}
    with pytest.raises(ImpossibleLayout) as refused:
        plan_training(question(**asked))
    assert refused.value.rule == "pipeline_layout_divides"
    assert str(refused.value).startswith(
        f"32 layers cannot be divided into {stages} stages in any way that megatron is planned with: "
        f"pipeline_parallel {of_gpus} can, and on other numbers of GPUs pipeline_parallel 32."
    )


def test_the_one_thing_that_excludes_every_layout_is_why_there_is_none():
    # Products in fp8 exclude them all, whatever their degrees and recompute.
    said = refused(framework="megatron", precision="fp8-mixed", activation_offload=True, offload_layers=4)
    assert said.startswith("megatron's activation_offload is planned in 16 and 32 bits, not with products in fp8.")


def test_what_a_framework_cannot_do_is_named_where_some_layouts_ask_for_it():
    # Of 48 GPUs in 4 stages 12 are replicas and tensor-parallel ranks; nanotron's shards lie on all replicas.
    asked = {"framework": "nanotron", "gpus": 48, "layout": {"pipeline_parallel": 4, "shard_group": 3}}
    with pytest.raises(ImpossibleLayout) as found:
        plan_training(question(**asked))
    assert "nanotron runs no layout with shard_group 3 here." in found.value.broken[0].detail


def refused(**asked) -> str:
    with pytest.raises(ImpossibleLayout) as found:
        plan_training(question(**asked))
    return str(found.value)


@pytest.mark.parametrize(
    ("batch", "offered"), [(96, "even: pipeline_parallel 4 or 8 can, on other"), (100, "pipeline_layout Et|(tt|)*12")]
)
def test_a_list_of_stages_is_offered_only_where_its_micro_batches_go_round(batch: int, offered: str):
    # 10 GPUs in 5 stages are 2 replicas: 96 sequences by two are 24 micro-batches each, no multiple of 5; 100 are 25.
    degrees = {"pipeline_parallel": 5, "virtual_pipeline": 4, "pipeline_layout": "even"}
    asked = {"gpus": 10, "global_batch_size": batch, "micro_batch_size": 2, "framework": "megatron"}
    assert offered in refused(**asked, layout=degrees)


@pytest.mark.parametrize(
    ("framework", "gpus", "offered"),
    [
        ("megatron", 8, " Et*8|(t*8|)*2t*8L would do."),  # 5 stages do not divide 8 GPUs, 4 do
        ("megatron", 5, " Et*6|(t*7|)*2t*6|t*6L would do."),
        ("nanotron", 8, ""),  # its one way is by-compute
    ],
)
def test_a_list_is_offered_only_to_a_stack_that_takes_it_on_gpus_that_it_divides(framework, gpus, offered):
    asked = {"framework": framework, "gpus": gpus, "global_batch_size": 40}
    said = refused(**asked, layout={"pipeline_layout": "Et*4|(t*5|)*3t*4L"})
    assert said.endswith(f"counted from 0, is in no stage.{offered}")


def test_a_way_to_divide_that_a_stack_lacks_is_told_with_those_it_has():
    degrees = {"pipeline_parallel": 8, "pipeline_layout": "by-compute"}
    comparison = compared(degrees=degrees, named={"framework": "megatron"})
    assert detail(comparison, "framework") == (
        "With megatron, pipeline_layout must be even, account-for-embedding, account-for-loss, "
        "account-for-embedding-and-loss, first=N,last=M or a list of blocks, not by-compute."
    )


def test_a_value_that_contradicts_another_is_told_at_its_field():
    comparison = compared(degrees={"offload": "none", "offload_target": "nvme"})
    assert [(reason.rule, reason.pointer) for reason in comparison.reasons] == [
        ("invalid-question", "/compare/0/offload_target")
    ]


def test_a_layout_that_offloads_activations_is_named_so():
    comparison = compared(framework="accelerate", named={"activation_offload": True, "framework": "accelerate"})
    assert comparison.layout is not None
    assert comparison.layout.activation_offload


def test_a_framework_that_cannot_offload_activations_is_told_at_the_field():
    comparison = compared(named={"activation_offload": True, "framework": "fsdp2"})
    assert comparison.outcome == "excluded"
    assert [reason.pointer for reason in comparison.reasons] == ["/compare/0/activation_offload"]


def test_missing_memory_is_told_in_gibibytes_with_stage_and_phase():
    degrees = {"data_parallel": 8, "tensor_parallel": 1, "pipeline_parallel": 1, "zero_stage": 0}
    comparison = compared(degrees=degrees, named={"framework": "megatron"})
    assert comparison.outcome == "does_not_fit"
    assert comparison.peak_bytes is not None
    assert comparison.margin_bytes is not None
    short = -comparison.margin_bytes / 2**30
    assert detail(comparison, "memory").startswith(f"Out of memory by {short:.1f} GiB on stage 0 in ")


@pytest.mark.slow
def test_every_stage_that_exceeds_its_card_is_told():
    degrees = {"data_parallel": 1, "tensor_parallel": 2, "pipeline_parallel": 4, "offload": "none"}
    comparison = compared(model=llama(LLAMA_3_70B), degrees=degrees, named={"framework": "megatron"})
    assert comparison.outcome == "does_not_fit"
    assert rules(comparison).count("memory") == 4


def test_a_partial_layout_is_completed_and_its_lost_seconds_are_told_by_part():
    comparison = compared(gpus=16, degrees={"tensor_parallel": 8, "context_parallel": 2})
    assert comparison.outcome == "slower"
    assert comparison.layout is not None
    assert comparison.layout.gpus == 16
    parts = {reason.rule: reason for reason in comparison.reasons}
    # 8 x 2 ranks are more than the 8 GPUs of a node.
    assert "span several nodes of 8 GPUs" in parts["context_parallel"].detail
    assert parts["context_parallel"].pointer == "/compare/0/context_parallel"
    assert "among 8 ranks of a node" in parts["tensor_parallel"].detail


def test_the_plan_itself_is_called_chosen():
    comparison = compared()
    assert (comparison.outcome, comparison.reasons) == ("chosen", ())


def test_a_faster_layout_that_the_request_fixes_away_says_so():
    comparison = compared(layout={"tensor_parallel": 8}, degrees={"tensor_parallel": 2})
    assert comparison.outcome == "outside_request"
    assert all(words in detail(comparison, "request") for words in ("fixes tensor_parallel 8", "has 2"))


def test_more_gpus_lose_where_the_fewest_are_wanted():
    comparison = compared(gpus=(8, 16), objective="fewest_gpus", degrees={"data_parallel": 16})
    assert comparison.outcome == "more_gpus"
    assert "fewest_gpus" in rules(comparison)


def test_a_late_layout_loses_to_one_in_time():
    # One step: the plan's own time is the deadline, and full recompute takes longer.
    base = {"tokens": 64 * 8192, "objective": "deadline"}
    in_time = plan_training(question(**base, deadline_seconds=1e9)).plan.step.seconds * 1.05
    comparison = compared(
        **base, deadline_seconds=in_time, degrees={"tensor_parallel": 8}, named={"recompute": Recompute(mode="full")}
    )
    assert comparison.outcome == "late"
    assert "deadline" in rules(comparison)


def test_cost_compares_gpu_time():
    comparison = compared(gpus=(8, 16), objective="cost", degrees={"tensor_parallel": 8})
    assert comparison.outcome == "costlier"


def test_a_tight_layout_loses_to_one_with_room():
    # A card that micro-batches of four fill to 95 %: beyond the 88 % up to which a plan fits with room.
    degrees = {"data_parallel": 8, "tensor_parallel": 1, "zero_stage": 3}
    asked = {"framework": "fsdp2", "global_batch_size": 64}
    peak = plan_training(question(**asked, layout=degrees, micro_batch_size=4)).plan.memory.peak_bytes
    card = hardware(8, gpu=gpu(memory_bytes=int(peak / 0.95)))
    comparison = compared(**asked, hardware=card, degrees=degrees, named={"micro_batch_size": 4})
    assert comparison.outcome == "tight"
    assert "margin" in rules(comparison)


@pytest.mark.parametrize("degrees", [{"tensor_parallel": 1}, {"zero_stage": 0}, {"context_parallel": 1}])
def test_whatever_is_named_gets_an_answer_with_a_layout_or_a_reason(degrees):
    comparison = compared(degrees=degrees)
    assert comparison.layout is not None or comparison.reasons


def test_degrees_that_divide_the_experts_are_named():
    comparison = compared(gpus=8, model=small_mixtral(), degrees={"expert_parallel": 3})
    (said,) = (reason.detail for reason in comparison.reasons if "experts;" in reason.detail)
    assert said == "expert_parallel 3 does not divide the 4 experts; 2 or 4 does."


def test_a_slower_layout_that_measurements_do_not_tell_apart_is_said_to_be_equal_within_the_band():
    # Megatron's tie is 19 %. Four tensor ranks of a node take a tenth longer than none, eight where batches are small a
    # quarter.
    near = compared(degrees={"tensor_parallel": 4, "offload": "none"}, named={"framework": "megatron"}, gpus=8)
    assert near.outcome == "slower"
    assert "equal_within_band" in rules(near)
    far = compared(degrees={"tensor_parallel": 8, "offload": "none"}, named={"framework": "megatron"}, gpus=64)
    assert far.outcome == "slower"
    assert "equal_within_band" not in rules(far)


def test_a_layout_is_set_beside_the_plan_in_another_version_of_its_framework_or_another_framework_s_newest():
    named = [NamedLayout(framework_version="2025-01"), NamedLayout(), NamedLayout(framework="megatron")]
    asked = question(framework="fsdp2", framework_version="2024-11", compare=tuple(named))
    compared = plan_without_advice(asked).comparisons
    assert [one.layout.framework_version for one in compared] == ["2025-01", "2024-11", "0.17"]
