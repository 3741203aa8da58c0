from dataclasses import replace

import pytest

from plimsoll.planners.architecture import Operation, OperationKind
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import (
    ImpossibleLayout,
    InvalidQuestion,
    NotYetAvailable,
    PlimsollError,
    UnknownName,
)
from plimsoll.planners.questions import Lora, Recompute
from plimsoll.planners.stacks.profile import profiles_to_search
from plimsoll.planners.training.planning import plan_training
from tests.planners.factories import LLAMA_7B, gpt, gpu, hardware, llama, question, small_llama


def test_llama_3_8b_on_eight_cards_fits():
    answer = plan_training(question())
    plan = answer.plan
    assert (answer.fits, answer.verdict) == (True, "fits")
    assert plan.memory.items.total_bytes == plan.memory.peak_bytes <= plan.memory.limit_bytes
    assert plan.layout.framework in ("accelerate", "fsdp2", "megatron")
    assert plan.layout.gpus == 8
    assert answer.advice == ()


def test_the_plan_is_among_what_the_search_counted():
    answer = plan_training(question())
    assert answer.search.layouts_considered > answer.search.layouts_fitting > len(answer.alternatives) > 0


def test_the_same_question_has_the_same_answer():
    assert plan_training(question()) == plan_training(question())


def test_a_fixed_layout_is_the_plan():
    layout = {"data_parallel": 4, "tensor_parallel": 2, "pipeline_parallel": 1, "zero_stage": 3, "context_parallel": 1}
    asked = question(framework="fsdp2", layout=layout, micro_batch_size=1, recompute=Recompute(mode="full"), tokens=1e9)
    plan = plan_training(asked).plan
    assert (plan.layout.data_parallel, plan.layout.tensor_parallel, plan.layout.zero_stage) == (4, 2, 3)
    assert plan.layout.gradient_accumulation_steps == 64 // 4
    assert plan.layout.recompute == "full"


def test_every_degree_multiplies_to_the_gpus():
    layout = plan_training(question(gpus=16)).plan.layout
    degrees = layout.data_parallel * layout.tensor_parallel * layout.pipeline_parallel * layout.context_parallel
    assert degrees == layout.gpus == 16


def test_what_does_not_fit_gives_the_closest_and_advice_that_fits():
    answer = plan_training(question(gpus=1, global_batch_size=8, layout={"offload": "none"}))
    assert (answer.fits, answer.verdict) == (False, "no")
    assert answer.plan.memory.margin_bytes < 0
    assert answer.advice
    assert all(advice.fits for advice in answer.advice)
    assert "Does not fit" in answer.summary


def test_a_fixed_layout_that_does_not_fit_is_the_closest():
    answer = plan_training(
        question(framework="reference", layout={"zero_stage": 0, "data_parallel": 8, "offload": "none"})
    )
    assert not answer.fits
    assert (answer.plan.layout.zero_stage, answer.plan.layout.data_parallel) == (0, 8)


def test_the_run_follows_from_tokens_and_price():
    # 64 x 8,192 tokens a step: 1e9 tokens are 1,907.3, so 1,908 steps.
    asked = question(tokens=1e9, hardware=replace(hardware(8), usd_per_gpu_hour=2.0))
    plan = plan_training(asked).plan
    assert plan.run.steps == 1908
    assert plan.run.seconds == pytest.approx(1908 * plan.step.seconds)
    assert plan.run.gpu_hours == pytest.approx(plan.run.seconds * 8 / 3600)
    assert plan.run.cost_usd == pytest.approx(2.0 * plan.run.gpu_hours)


@pytest.mark.parametrize(("deadline_seconds", "word"), [(1e9, "meets"), (1.0, "misses")])
def test_a_plan_says_whether_it_keeps_its_deadline(deadline_seconds: float, word: str):
    asked = question(objective="deadline", tokens=1e9, deadline_seconds=deadline_seconds, hardware=hardware(8))
    assert f"{word} the deadline of" in plan_training(asked).summary


def test_a_plan_without_a_deadline_speaks_of_none():
    assert "deadline" not in plan_training(question(tokens=1e9)).summary


def test_without_tokens_the_run_has_no_length_and_without_a_price_no_cost():
    run = plan_training(question()).plan.run
    assert (run.steps, run.seconds, run.gpu_hours, run.cost_usd, run.model_flops) == (None,) * 5
    assert plan_training(question(tokens=1e9)).plan.run.cost_usd is None


def test_model_operations_are_three_forward_passes():
    asked = question(tokens=1e9)
    forward = asked.model.forward_flops_per_token((8192 + 1) / 2)
    assert plan_training(asked).plan.run.model_flops == pytest.approx(3 * forward * 1e9)


def test_elastic_sizes_keep_the_batch_and_fit():
    plan = plan_training(question(framework="fsdp2")).plan
    ranks = plan.layout.gpus // plan.layout.data_parallel
    assert plan.layout.gpus in plan.run.elastic_gpus
    assert all(64 % (gpus // ranks * plan.layout.micro_batch_size) == 0 for gpus in plan.run.elastic_gpus)


def test_any_names_the_framework_and_its_basis():
    answer = plan_training(question())
    assert any(answer.plan.layout.framework in note for note in answer.assumptions)
    assert any("A step may take" in note for note in answer.assumptions)


def test_the_fewest_gpus_are_found_when_none_are_named():
    gpus = plan_training(question(framework="fsdp2", gpus=None)).plan.layout.gpus
    assert not plan_training(question(framework="fsdp2", gpus=gpus - 1, layout={"offload": "none"})).fits


def test_lora_needs_less_than_full_and_qlora_less_than_lora():
    peaks = [
        plan_training(
            question(
                framework="accelerate",
                method=method,
                micro_batch_size=1,
                recompute=Recompute(mode="none"),
                layout={"zero_stage": 0},
            )
        ).plan.memory.items.parameters
        for method in ("lora", "qlora")
    ]
    assert peaks[1] < peaks[0]


@pytest.mark.parametrize(
    ("changes", "error", "pointer"),
    [
        ({"method": "dora"}, InvalidQuestion, "/training/method"),
        ({"objective": "fun"}, InvalidQuestion, "/objective"),
        ({"attention": "ring"}, InvalidQuestion, "/training/attention"),
        ({"precision": "bf17"}, UnknownName, "/training/precision"),
        ({"framework": "accelerate", "precision": "fp8-mixed"}, InvalidQuestion, "/training/precision"),
        ({"framework": "megatron", "kernels": "eager"}, InvalidQuestion, "/training/kernels"),
        ({"kernels": "fast"}, InvalidQuestion, "/training/kernels"),
        ({"optimizer": "adam2"}, UnknownName, "/training/optimizer"),
        ({"framework": "fsdp3"}, UnknownName, "/framework"),
        ({"sequence_length": 0}, InvalidQuestion, "/training/sequence_length"),
        ({"global_batch_size": 0}, InvalidQuestion, "/training/global_batch_size"),
        ({"tokens": 0.0}, InvalidQuestion, "/training/tokens"),
        ({"objective": "deadline"}, InvalidQuestion, "/deadline_seconds"),
        ({"objective": "deadline", "deadline_seconds": 1e9}, InvalidQuestion, "/training/tokens"),
        ({"method": "lora", "lora": Lora(rank=0)}, InvalidQuestion, "/training/lora/rank"),
        ({"gradient_dtype": "fp4"}, InvalidQuestion, "/training/gradient_dtype"),
        ({"optimizer_state_dtype": "fp4"}, InvalidQuestion, "/training/optimizer_state_dtype"),
        ({"framework": "fsdp2", "method": "lora"}, InvalidQuestion, "/training/method"),
        ({"framework": "megatron", "precision": "bf16"}, InvalidQuestion, "/training/precision"),
        ({"framework": "fsdp2", "optimizer": "sgd"}, InvalidQuestion, "/training/optimizer"),
        ({"framework": "ddp", "layout": {"tensor_parallel": 2}}, InvalidQuestion, "/layout/tensor_parallel"),
        ({"layout": {"zero_stage": 4}}, ImpossibleLayout, "/layout/zero_stage"),
        ({"layout": {"tensor_parallel": 7}}, ImpossibleLayout, "/layout/tensor_parallel"),
    ],
)
def test_questions_without_sense_point_at_their_field(changes, error, pointer):
    with pytest.raises(error) as caught:
        plan_training(question(**changes))
    assert isinstance(caught.value, PlimsollError)
    assert caught.value.pointer == pointer


def test_a_card_without_the_format_is_refused():
    old = hardware(8, gpu=gpu(peak_flops_per_second={"fp16": 125e12, "fp32": 15.7e12}))
    with pytest.raises(InvalidQuestion, match="bf16"):
        plan_training(replace(question(), hardware=old))


def test_a_reserve_that_leaves_nothing_is_refused():
    full = hardware(8, reserve_bytes=85_029_158_912)
    with pytest.raises(InvalidQuestion, match="whole memory of the GPU"):
        plan_training(replace(question(), hardware=full))


def test_a_recurrence_that_no_public_kernel_trains_is_not_planned_yet():
    model = small_llama()
    scan = Operation(name="scan", kind=OperationKind.SCAN, inputs=("residual",), output="residual")
    layer = replace(model.layers[0], operations=(*model.layers[0].operations, scan))
    with pytest.raises(NotYetAvailable, match="recurrent"):
        plan_training(question(model=replace(model, layers=(layer,))))


def test_the_textbook_plan_of_a_7b_adds_up_to_its_sums():
    # 16 bytes for each parameter, whatever else the step needs.
    model = llama(LLAMA_7B)
    asked = question(
        framework="reference",
        model=model,
        gpus=1,
        sequence_length=2048,
        global_batch_size=1,
        layout={"zero_stage": 0, "offload": "none"},
    )
    items = plan_training(asked).plan.memory.items
    assert items.parameters + items.gradients + items.optimizer == 16 * model.parameters
    assert (items.runtime, items.fragmentation, items.communication) == (0, 0, 0)


GPT2 = {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}


def test_learned_positions_end_where_the_model_does():
    spec = describe_config(GPT2, name="gpt2")
    assert plan_training(question(model=spec, sequence_length=1024)).fits
    with pytest.raises(InvalidQuestion, match="1,024 learned positions") as raised:
        plan_training(question(model=spec, sequence_length=1025))
    assert raised.value.pointer == "/training/sequence_length"


def test_a_sequence_beyond_rotary_positions_is_an_assumption():
    spec = replace(small_llama(), max_position_embeddings=4096)
    answer = plan_training(question(model=spec, sequence_length=4097))
    assert any("4,097 tokens; the model was configured for 4,096 positions" in note for note in answer.assumptions)


def test_more_layers_cannot_be_recomputed_than_there_are():
    layers = small_llama().num_layers
    assert plan_training(question(model=small_llama(), recompute=Recompute(mode="full", full_layers=layers))).plan
    with pytest.raises(InvalidQuestion, match="more than the"):
        plan_training(question(model=small_llama(), recompute=Recompute(mode="full", full_layers=layers + 1)))


def test_a_fixed_shard_group_is_kept_or_refused():
    # Groups of 2 divide 8 replicas; no number of replicas on 8 GPUs is a multiple of 3.
    assert plan_training(question(layout={"shard_group": 2})).plan.layout.shard_group == 2
    with pytest.raises(ImpossibleLayout):
        plan_training(question(layout={"shard_group": 3}))


def test_nobody_is_advised_more_gpus_than_the_largest_cluster_has():
    asked = question(model=llama(num_hidden_layers=400), gpus=(8, 131_072), layout={"tensor_parallel": 1})
    assert all("hardware.gpus" not in advice.change for advice in plan_training(asked).advice)


def test_the_textbook_divides_states_over_all_replicas():
    plan = plan_training(question(framework="reference", gpus=64, layout={"data_parallel": 64, "zero_stage": 1})).plan
    assert plan.layout.shard_group == 64


def test_a_job_that_no_measured_stack_runs_is_planned_by_another_and_says_so():
    answer = plan_training(question(optimizer="muon", precision="fp16-mixed"))
    assert f"No measured run of {answer.plan.layout.framework} is on record" in answer.summary
    with_muon = {
        profile.name
        for profile in profiles_to_search("any")
        if "muon" in profile.can.optimizers and "muon" not in profile.can.optimizer_precisions
    }
    assert {"ddp", "deepspeed"} <= set(answer.stacks.searched) == with_muon
    assert answer.stacks.unmeasured == answer.stacks.searched


def test_stacks_that_were_not_searched_are_named_with_the_reason():
    stacks = plan_training(question(method="qlora", precision="bf16")).stacks
    assert set(stacks.searched) == {"accelerate", "litgpt"}
    reasons = {each.framework: each.reason for each in stacks.left_out}
    assert "a measured stack has room" in reasons["torchtune"]
    assert "bf16" in reasons["megatron"]


def test_an_unmeasured_stack_is_searched_where_no_measured_one_fits():
    # One sequence of 2^20 tokens fits one card on no stack; then all of them were asked.
    stacks = plan_training(question(gpus=1, sequence_length=2**20, global_batch_size=1)).stacks
    assert {"deepspeed", "ddp", "composer"} <= set(stacks.searched)


def test_who_fixed_no_degree_is_pointed_at_the_number_of_gpus():
    # 1,000 GPUs share no batch of 1,536 sequences.
    with pytest.raises(ImpossibleLayout) as refused:
        plan_training(question(gpus=1000, global_batch_size=1536))
    assert refused.value.pointer == "/hardware/gpus"
    with pytest.raises(ImpossibleLayout) as refused:
        plan_training(question(gpus=8, global_batch_size=60, layout={"data_parallel": 8}))
    assert refused.value.pointer == "/layout/data_parallel"


def test_a_card_without_a_format_is_told_in_which_precisions_it_trains():
    old = gpu(peak_flops_per_second={"fp32": 1e13, "fp16": 1e14})
    with pytest.raises(InvalidQuestion, match=r"does not compute in bf16\. It trains in fp32, fp16-mixed\."):
        plan_training(question(hardware=hardware(8, gpu=old)))


class TestMultiTokenPrediction:
    def plan(self, framework="megatron", *, model=None, layout=None, layers=1):
        return plan_training(
            question(
                model=model or small_llama(),
                framework=framework,
                gpus=2,
                sequence_length=64,
                global_batch_size=8,
                multi_token_prediction=layers,
                layout=layout,
            )
        )

    def test_it_is_said_what_it_adds_and_who_counts_it(self):
        # A layer has 36,992 parameters; three norms of 64 and a matrix of 128 x 64 join it.
        told = next(note for note in self.plan().assumptions if note.startswith("Multi-token prediction adds"))
        assert f"1 layer with {36_992 + 3 * 64 + 2 * 64 * 64:,} parameters" in told

    def test_the_table_of_weights_has_it_on_its_stage(self):
        weights = self.plan(layout={"pipeline_parallel": 2}).plan.sharding.weights
        of = {weight.name: weight.stage_copies for weight in weights}
        assert of["model.layers.*.eh_proj.weight"] == (0, 1)
        assert of["model.embed_tokens.weight"] == (1, 1)
        assert sum(of["model.layers.*.self_attn.q_proj.weight"]) == 5

    @pytest.mark.parametrize("framework", ["nanotron", "megatron-deepspeed"])
    def test_other_stacks_refuse_it(self, framework):
        with pytest.raises(
            InvalidQuestion, match=f"planned with megatron or megatron-bridge, not with {framework}"
        ) as caught:
            self.plan(framework)
        assert caught.value.pointer == "/training/multi_token_prediction"

    def test_of_any_stack_one_that_can_is_chosen(self):
        assert self.plan("any").plan.layout.framework == "megatron"

    def test_learned_positions_are_refused(self):
        with pytest.raises(InvalidQuestion, match="a decoder with rotary positions"):
            self.plan(model=gpt(n_layer=4, n_embd=64, n_head=4))

    def test_a_last_layer_without_attention_is_not_planned(self):
        mamba = {"model_type": "mamba2", "vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_heads": 2,
                 "head_dim": 64, "state_size": 16, "expand": 2, "n_groups": 1}  # fmt: skip
        with pytest.raises(NotYetAvailable, match="whose last layer has attention"):
            self.plan(model=describe_config(mamba, name="small"))

    @pytest.mark.parametrize(
        ("listed", "layers", "words"),
        [
            ("Ett|ttL", 1, "lists 0 layers for multi-token prediction"),
            ("Ett|ttmmL", 1, "asks for 1"),
            ("Ett|ttmL", 0, "asks for 0"),
        ],
    )
    def test_a_list_of_blocks_has_as_many_as_are_asked_for(self, listed, layers, words):
        with pytest.raises(ImpossibleLayout) as caught:
            self.plan(layout={"pipeline_parallel": 2, "pipeline_layout": listed}, layers=layers)
        assert words in " ".join(broken.detail for broken in caught.value.broken)

    def test_a_later_chunk_of_the_first_stage_cannot_have_it(self):
        layout = {"pipeline_parallel": 2, "virtual_pipeline": 2, "pipeline_layout": "Ett|tt|m|L"}
        with pytest.raises(ImpossibleLayout) as caught:
            self.plan(layout=layout)
        assert "embedding's table twice" in " ".join(broken.detail for broken in caught.value.broken)


@pytest.mark.parametrize(
    ("framework", "card", "is_told"),
    [("any", "h100-sxm-96gb", True), ("megatron", "h100-sxm-96gb", False), ("any", "h100-sxm-80gb", False)],
)
def test_a_stack_that_any_chose_and_nobody_timed_on_the_card_is_told_in_the_summary(
    framework: str, card: str, *, is_told: bool
):
    # Of the H100 with 96 GB only torchtitan's runs were fitted; whoever names a stack chose the pair.
    asked = question(framework=framework, model=small_llama(), sequence_length=512)
    answer = plan_training(replace(asked, hardware=hardware(8, gpu=catalogue().gpu(card))))
    assert answer.plan.layout.framework == "megatron"
    told = "No timed run of megatron on this GPU was fitted; those on record are of fsdp2"
    assert (told in answer.summary) is is_told
