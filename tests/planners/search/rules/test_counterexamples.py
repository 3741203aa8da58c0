"""A layout for each breach of each rule that commits it, worked out by hand, so that no predicate can fall silent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import FULL, SELECTIVE
from plimsoll.planners.questions import Overlap, Recompute
from plimsoll.planners.search.rules.every import RULES, RULES_OF_FIXED, rule_by_name
from plimsoll.planners.search.rules.rule import FixedBreach
from plimsoll.planners.search.rules.stack import LAYOUT_ABILITIES
from plimsoll.planners.stacks.profile import load_profile, running_profile
from tests.planners.factories import llama, question, small_mixtral
from tests.planners.training_cases import job, one_layout

# Four experts in each layer.
EXPERTS = small_mixtral()
SIX_EXPERTS = small_mixtral(num_local_experts=6)
GPT_OSS, DEEPSEEK_V3, T5 = (
    describe_config(catalogue().model(name).config, name=name)
    for name in ("openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V3", "google-t5/t5-11b")
)
RECURRENT = describe_config(
    {
        "model_type": "bamba", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "attn_layer_indices": [1], "mamba_n_heads": 4,
        "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2,
    },
    name="bamba",
)  # fmt: skip

ATTENTION_FREE = describe_config(
    {
        "model_type": "mamba2", "vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_heads": 4,
        "head_dim": 32, "state_size": 16, "n_groups": 1, "conv_kernel": 4, "expand": 2,
    },
    name="attention-free",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Counterexample:
    """A layout of a stack's job that commits breach number `breach` of a rule, and what its sentence must say."""

    rule: str
    breach: int = 0
    framework: str = "reference"
    asked: dict[str, Any] = field(default_factory=dict)
    layout: dict[str, Any]
    numbers: tuple[str, ...]

    @property
    def job(self) -> Job:
        """Return the job: Llama 3 8B, 32 layers, 32 and 8 heads, 8,192 tokens, 64 sequences, unless told otherwise."""
        return job(self.framework, **self.asked)


CASES = (
    Counterexample(
        rule="framework",
        framework="nanotron",
        layout={"data_parallel": 6, "shard_group": 3, "zero_stage": 1},
        numbers=("nanotron runs no layout with shard_group 3 here.",),
    ),
    Counterexample(rule="heads_divide", layout={"tensor_parallel": 3}, numbers=("3", "32", "8", "1, 2, 4 or 8")),
    Counterexample(
        # 14,338 = 2 x 7,169.
        rule="matrices_divide",
        asked={"model": llama(intermediate_size=14338)},
        layout={"tensor_parallel": 4},
        numbers=("tensor_parallel 4", "(14338, 4096)"),
    ),
    Counterexample(
        rule="stages_have_layers",
        layout={"pipeline_parallel": 8, "virtual_pipeline": 5},
        numbers=("8", "5", "= 40 chunks", "32 layers"),
    ),
    Counterexample(
        # The head is worth some layers, so that 32 of them do not go round 64 stages.
        rule="pipeline_layout_divides",
        framework="nanotron",
        layout={"pipeline_parallel": 64},
        numbers=("pipeline_parallel 64", "nanotron"),
    ),
    Counterexample(
        # 32 layers in 5 stages; 4 and 8 divide them.
        rule="pipeline_layout_divides",
        framework="megatron",
        asked={"layout": {"pipeline_layout": "even"}},
        layout={"pipeline_parallel": 5},
        numbers=(
            "32 layers",
            "5 stages",
            "layout even",
            "pipeline_layout Et*6|(t*7|)*2t*6|t*6L can",
            "parallel 4 or 8",
        ),
    ),
    Counterexample(
        rule="pipeline_layout_divides",
        layout={"pipeline_parallel": 4, "virtual_pipeline": 3},
        numbers=("4 x 3 = 12 chunks", "32 layers"),
    ),
    Counterexample(
        # Four stages are listed for a pipeline of eight.
        rule="pipeline_layout_divides",
        framework="megatron",
        asked={"layout": {"pipeline_layout": "E(t*8|)*3t*8L"}},
        layout={"pipeline_parallel": 8},
        numbers=("lists 4 stages", "has 8 stages: list as many"),
    ),
    Counterexample(
        rule="pipeline_layout_divides",
        framework="megatron",
        asked={"layout": {"pipeline_layout": "first=7,last=7"}},
        layout={"pipeline_parallel": 4, "virtual_pipeline": 2},
        numbers=("(the first stage's 7 layers cannot be in 2 chunks): pipeline_layout ",),
    ),
    Counterexample(
        # 32 - 7 = 25 layers do not go round three stages; in two they do, and in six with five each.
        rule="pipeline_layout_divides",
        framework="megatron",
        asked={"layout": {"pipeline_layout": "last=7"}},
        layout={"pipeline_parallel": 4},
        numbers=(
            "last=7 (25 layers are left for 3 stages",
            "pipeline_layout Et*8|(t*8|)*2t*8L can",
            "on other numbers of GPUs pipeline_parallel 6",
        ),
    ),
    Counterexample(
        rule="pipeline_layout_divides",
        framework="megatron",
        asked={"layout": {"pipeline_layout": "first=40"}},
        layout={"pipeline_parallel": 4},
        numbers=("first=40 (8 layers too many): ", "pipeline_layout Et*8|(t*8|)*2t*8L can"),
    ),
    Counterexample(
        rule="pipeline_layout_divides",
        framework="megatron",
        asked={"layout": {"pipeline_layout": "first=8,last=8"}},
        layout={"pipeline_parallel": 2},
        numbers=("(16 layers are left for no stage): ", "pipeline_layout Et*16|t*16L can", "pipeline_parallel 3"),
    ),
    Counterexample(
        rule="pipeline_layout_divides",
        framework="megatron",
        asked={"layout": {"pipeline_layout": "first=8"}},
        layout={},
        numbers=("pipeline_layout first=8", "pipeline_parallel above 1"),
    ),
    Counterexample(
        rule="batch_divides",
        layout={"data_parallel": 8, "micro_batch_size": 3},
        numbers=("64", "data_parallel 8", "micro_batch_size 3", "= 24"),
    ),
    Counterexample(
        rule="recomputed_layers_divide",
        framework="megatron",
        layout={"pipeline_parallel": 4, "virtual_pipeline": 2, "recompute": FULL, "full_layers": 3},
        numbers=("virtual_pipeline 2", "3 recomputed layers"),
    ),
    Counterexample(
        rule="interleaving_needs_pipeline", layout={"virtual_pipeline": 2}, numbers=("virtual_pipeline 2", "above 1")
    ),
    Counterexample(
        rule="interleaving_needs_pipeline",
        breach=1,
        asked={"layout": {"pipeline_schedule": "gpipe"}},
        layout={"pipeline_parallel": 4, "virtual_pipeline": 2},
        numbers=("virtual_pipeline 2", "1f1b", "gpipe"),
    ),
    Counterexample(
        # 64 sequences on 32 replicas are 2 micro-batches, half a round of 4 stages.
        rule="interleaving_needs_pipeline",
        breach=2,
        layout={"pipeline_parallel": 4, "virtual_pipeline": 2, "data_parallel": 32},
        numbers=("4 stages", "not 2"),
    ),
    Counterexample(
        rule="sequence_divides", layout={"context_parallel": 3}, numbers=("2 x context_parallel 3", "8192 tokens")
    ),
    Counterexample(
        rule="sequence_divides",
        breach=1,
        layout={"context_parallel": 2, "tensor_parallel": 3, "sequence_parallel": True},
        numbers=("2 x tensor_parallel 3 = 6", "8192 tokens"),
    ),
    Counterexample(
        rule="context_needs_flash",
        asked={"attention": "eager"},
        layout={"context_parallel": 2},
        numbers=("context_parallel 2", "eager"),
    ),
    Counterexample(
        rule="context_needs_attention",
        framework="megatron",
        asked={"model": RECURRENT},
        layout={"context_parallel": 2},
        numbers=("context_parallel 2", "bamba"),
    ),
    Counterexample(
        rule="context_needs_attention",
        breach=1,
        framework="megatron",
        asked={"model": GPT_OSS},
        layout={"context_parallel": 2},
        numbers=("context_parallel 2", "sliding windows, attention sinks in a ring", "context_all_to_all 2"),
    ),
    Counterexample(
        rule="context_needs_attention",
        breach=2,
        framework="megatron",
        asked={"model": DEEPSEEK_V3},
        layout={"context_parallel": 2, "context_all_to_all": 2},
        numbers=("context_all_to_all 2", "keys wider than values"),
    ),
    Counterexample(
        rule="sequence_parallel_needs_tensor", layout={"sequence_parallel": True}, numbers=("tensor_parallel above 1",)
    ),
    Counterexample(
        rule="shard_group_divides",
        layout={"data_parallel": 8, "shard_group": 3},
        numbers=("shard_group 3", "data_parallel 8"),
    ),
    Counterexample(
        rule="shard_group_has_ranks",
        layout={"data_parallel": 4, "shard_group": 1, "zero_stage": 2},
        numbers=("shard_group 1", "zero_stage 2", "data_parallel 4"),
    ),
    Counterexample(
        rule="experts_divide",
        framework="megatron",
        asked={"model": EXPERTS},
        layout={"data_parallel": 3, "expert_parallel": 3},
        numbers=("expert_parallel 3", "4 experts"),
    ),
    Counterexample(
        rule="experts_divide",
        breach=1,
        framework="megatron",
        asked={"model": EXPERTS},
        layout={"data_parallel": 3, "expert_parallel": 2},
        numbers=("expert_parallel 2", "data_parallel x context_parallel x tensor_parallel = 3"),
    ),
    Counterexample(
        rule="experts_need_sequence_parallel",
        framework="megatron",
        asked={"model": EXPERTS},
        layout={"data_parallel": 2, "tensor_parallel": 2, "expert_parallel": 2},
        numbers=("expert_parallel 2", "tensor_parallel 2"),
    ),
    Counterexample(
        rule="experts_lie_in_shard_groups",
        framework="fsdp2",
        asked={"model": EXPERTS},
        layout={"data_parallel": 6, "shard_group": 3, "zero_stage": 3, "expert_parallel": 2},
        numbers=("expert_parallel 2", "3 ranks", "fsdp2"),
    ),
    Counterexample(
        # Three ranks cannot share out pairs of experts' ranks.
        rule="expert_shards_exist",
        framework="fsdp2",
        asked={"model": SIX_EXPERTS},
        layout={"data_parallel": 6, "shard_group": 3, "zero_stage": 3, "expert_parallel": 2},
        numbers=("shard_group 3", "expert_parallel 2"),
    ),
    Counterexample(
        rule="expert_overlap_has_pairs",
        framework="megatron",
        asked={"model": EXPERTS},
        layout={"data_parallel": 2, "expert_overlap": True},
        numbers=("expert_parallel above 1",),
    ),
    Counterexample(
        rule="expert_overlap_has_pairs",
        breach=1,
        framework="megatron",
        asked={"model": EXPERTS},
        layout={"data_parallel": 2, "expert_parallel": 2, "pipeline_parallel": 2, "expert_overlap": True},
        numbers=("2 stages", "virtual_pipeline above 1"),
    ),
    Counterexample(
        rule="expert_overlap_has_pairs",
        breach=2,
        framework="megatron",
        asked={"model": EXPERTS},
        layout={"data_parallel": 2, "expert_parallel": 2, "recompute": FULL, "expert_overlap": True},
        numbers=("megatron", "recompute full"),
    ),
    Counterexample(
        rule="expert_overlap_has_pairs",
        breach=3,
        framework="megatron",
        asked={"model": EXPERTS, "precision": "fp32"},
        layout={"data_parallel": 2, "expert_parallel": 2, "expert_overlap": True},
        numbers=("megatron", "bf16 or fp16"),
    ),
    Counterexample(
        # Six ranks have one of six experts each.
        rule="expert_overlap_has_pairs",
        breach=4,
        framework="megatron",
        asked={"model": SIX_EXPERTS},
        layout={"data_parallel": 6, "expert_parallel": 6, "expert_overlap": True},
        numbers=("megatron", "expert_parallel 6"),
    ),
    Counterexample(
        rule="expert_overlap_has_pairs",
        breach=5,
        framework="megatron",
        asked={"model": EXPERTS, "multi_token_prediction": 1},
        layout={"data_parallel": 2, "expert_parallel": 2, "expert_overlap": True},
        numbers=("megatron", "1 layer", "in a pipeline"),
    ),
    Counterexample(
        rule="parameters_hide_with_gradients",
        framework="megatron",
        asked={"layout": {"overlap": Overlap(gradients=False, parameters=True)}},
        layout={"data_parallel": 2, "zero_stage": 1},
        numbers=("megatron", "reduction of gradients"),
    ),
    Counterexample(
        rule="tensor_overlap_has_pieces",
        framework="megatron",
        asked={"layout": {"overlap": Overlap(tensor_parallel=True)}},
        layout={"tensor_parallel": 2},
        numbers=("tensor_parallel 2", "sequence_parallel"),
    ),
    Counterexample(
        rule="tensor_overlap_has_pieces",
        breach=1,
        framework="fsdp2",
        asked={"layout": {"overlap": Overlap(tensor_parallel=True)}},
        layout={"tensor_parallel": 2, "sequence_parallel": True, "zero_stage": 3},
        numbers=("fsdp2", "training.kernels: compiled"),
    ),
    Counterexample(
        rule="exchanged_heads_divide",
        framework="megatron",
        layout={"context_parallel": 8, "context_all_to_all": 3},
        numbers=("context_all_to_all 3", "context_parallel 8"),
    ),
    Counterexample(
        rule="exchanged_heads_divide",
        breach=1,
        framework="megatron",
        layout={"context_parallel": 8, "context_all_to_all": 8, "tensor_parallel": 2},
        numbers=("tensor_parallel 2 x context_all_to_all 8 = 16", "32 attention heads", "8 key-value heads"),
    ),
    Counterexample(
        rule="secondary_group_divides",
        framework="deepspeed",
        layout={"data_parallel": 8, "secondary_shard_group": 4, "zero_stage": 2},
        numbers=("secondary_shard_group 4", "zero_stage 3", "not 2"),
    ),
    Counterexample(
        rule="secondary_group_divides",
        breach=1,
        framework="deepspeed",
        layout={"data_parallel": 8, "secondary_shard_group": 3, "zero_stage": 3},
        numbers=("secondary_shard_group 3", "data_parallel 8"),
    ),
    Counterexample(
        rule="secondary_group_divides",
        breach=2,
        framework="deepspeed",
        asked={"layout": {"offload_target": "nvme"}},
        layout={"data_parallel": 8, "secondary_shard_group": 4, "zero_stage": 3, "offload": 2},
        numbers=("deepspeed", "secondary_shard_group", "NVMe"),
    ),
    Counterexample(
        rule="offload_needs_sharding",
        framework="deepspeed",
        layout={"offload": 2, "zero_stage": 2},
        numbers=("optimizer+parameters", "zero_stage 3", "not 2"),
    ),
    Counterexample(
        rule="offload_needs_sharding",
        breach=1,
        framework="megatron",
        layout={"offload": 1, "zero_stage": 0},
        numbers=("megatron", "zero_stage 1", "not 0"),
    ),
    Counterexample(
        rule="offload_needs_sharding",
        breach=2,
        framework="megatron",
        asked={"optimizer_state_dtype": "bf16"},
        layout={"offload": 1, "zero_stage": 1},
        numbers=("megatron", "optimizer_state_dtype"),
    ),
    Counterexample(
        rule="offload_needs_sharding",
        breach=3,
        framework="torchtune",
        asked={"precision": "bf16"},
        layout={"offload": 2, "zero_stage": 3, "tensor_parallel": 2, "sequence_parallel": True},
        numbers=("torchtune", "optimizer+parameters", "2 or more"),
    ),
    Counterexample(
        # examples/t5/pretrain_t5.py raises "Pipeline parallelism is not supported for T5."
        rule="pipelines_have_code",
        framework="megatron",
        asked={"model": T5},
        layout={"pipeline_parallel": 2},
        numbers=("pipeline_parallel 2", "megatron", "encoder-decoder models", "must be 1"),
    ),
    Counterexample(
        rule="experts_divide_in_stage",
        framework="deepspeed",
        asked={"model": EXPERTS},
        layout={"data_parallel": 2, "expert_parallel": 2, "zero_stage": 3},
        numbers=("deepspeed", "zero_stage 0, 1 or 2", "not in 3"),
    ),
    Counterexample(
        rule="adapters_lie_whole",
        framework="torchtune",
        asked={"precision": "bf16", "method": "lora"},
        layout={"data_parallel": 2, "tensor_parallel": 2, "sequence_parallel": True, "zero_stage": 3},
        numbers=("torchtune", "tensor_parallel must be 1"),
    ),
    Counterexample(
        rule="replicas_are_sharded",
        framework="torchtune",
        asked={"precision": "bf16"},
        layout={"data_parallel": 2, "context_parallel": 4, "zero_stage": 0},
        numbers=("torchtune", "8 ranks", "zero_stage must be 2 or 3"),
    ),
    Counterexample(
        rule="activations_go_with_recompute",
        framework="torchtune",
        asked={"precision": "bf16", "activation_offload": True},
        layout={"activation_offload": True, "recompute": SELECTIVE},
        numbers=("torchtune", "recompute must be full"),
    ),
    Counterexample(
        rule="layers_go_whole",
        framework="megatron",
        asked={"activation_offload": True, "offload_layers": 4},
        layout={"pipeline_parallel": 2, "activation_offload": True},
        numbers=("megatron", "pipeline_parallel is 2"),
    ),
    Counterexample(
        rule="layers_go_whole",
        breach=1,
        framework="megatron",
        asked={"activation_offload": True, "offload_layers": 4},
        layout={"recompute": 1, "activation_offload": True},
        numbers=("megatron", "recompute must be none"),
    ),
    Counterexample(
        rule="layers_go_whole",
        breach=2,
        framework="megatron",
        asked={"activation_offload": True, "offload_layers": 4, "multi_token_prediction": 1},
        layout={"activation_offload": True},
        numbers=("megatron", "multi-token prediction"),
    ),
    Counterexample(
        rule="layers_go_whole",
        breach=3,
        framework="megatron",
        asked={"activation_offload": True, "offload_layers": 4, "precision": "fp8-mixed"},
        layout={"activation_offload": True},
        numbers=("megatron", "fp8"),
    ),
    Counterexample(
        rule="layers_go_whole",
        breach=4,
        framework="megatron",
        asked={"activation_offload": True, "offload_layers": 4, "attention": "eager"},
        layout={"activation_offload": True},
        numbers=("megatron", "not eager"),
    ),
    Counterexample(
        rule="compression_needs_whole_gradients",
        framework="deepspeed",
        asked={"gradient_compression": "1-bit"},
        layout={"zero_stage": 1},
        numbers=("1-bit", "zero_stage 0", "not 1"),
    ),
    Counterexample(
        rule="stage_divides_optimizer",
        framework="megatron",
        asked={"optimizer": "sgd-momentum"},
        layout={"data_parallel": 2, "zero_stage": 1},
        numbers=("megatron", "sgd-momentum", "zero_stage 0", "not 1"),
    ),
    Counterexample(
        rule="state_dtypes_need_sharding",
        framework="megatron",
        asked={"optimizer_state_dtype": "bf16"},
        layout={"data_parallel": 2, "zero_stage": 0},
        numbers=("megatron", "zero_stage 1", "not 0"),
    ),
    Counterexample(
        rule="low_precision_weights_need_sharding",
        framework="megatron",
        asked={"precision": "fp8-mixed", "low_precision_weights": True},
        layout={"data_parallel": 2, "zero_stage": 0},
        numbers=("megatron", "zero_stage 1", "not 0"),
    ),
    Counterexample(
        rule="states_on_host_need_delayed_scaling",
        framework="megatron",
        asked={"precision": "mxfp8-mixed", "low_precision_weights": True},
        layout={"data_parallel": 2, "zero_stage": 1, "offload": 1},
        numbers=("megatron", "precision fp8-mixed, not mxfp8-mixed"),
    ),
    Counterexample(
        rule="activations_go_by_parts",
        framework="megatron",
        asked={"model": ATTENTION_FREE},
        layout={"activation_offload": True},
        numbers=("attention-free", "megatron"),
    ),
    Counterexample(
        rule="activations_go_by_parts",
        breach=1,
        framework="megatron",
        layout={"activation_offload": True, "recompute": FULL},
        numbers=("megatron", "none, or of modules"),
    ),
    Counterexample(
        rule="activations_go_by_parts",
        breach=2,
        framework="megatron",
        asked={
            "model": EXPERTS,
            "offload_modules": ("moe_act",),
            "recompute": Recompute(mode="selective", modules=("moe",)),
        },
        layout={"activation_offload": True, "recompute": SELECTIVE},
        numbers=("megatron", "no moe_act", "in place of moe"),
    ),
    Counterexample(
        rule="activations_go_by_parts",
        breach=3,
        framework="megatron",
        asked={"precision": "fp8-mixed"},
        layout={"activation_offload": True},
        numbers=("megatron", "fp8"),
    ),
    Counterexample(
        rule="activations_go_by_parts",
        breach=4,
        framework="megatron",
        asked={"attention": "eager"},
        layout={"activation_offload": True},
        numbers=("megatron", "flash, not eager"),
    ),
    Counterexample(
        rule="nvme_needs_stage_three",
        framework="deepspeed",
        asked={"layout": {"offload_target": "nvme"}},
        layout={"offload": 1, "zero_stage": 2},
        numbers=("nvme", "zero_stage 3", "not 2"),
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}-{case.breach}")
def test_a_breach_is_seen_and_told_with_its_numbers(case: Counterexample):
    rule, layouts = rule_by_name(case.rule), one_layout(**case.layout)
    committed = [breach.where(layouts, case.job).any() for breach in rule.breaches]
    assert committed.index(True) == case.breach
    assert rule.broken(layouts, case.job).all()
    detail = rule.detail(layouts, case.job)
    assert [number for number in case.numbers if number not in detail] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_no_breach_is_without_a_counterexample(rule):
    assert {case.breach for case in CASES if case.rule == rule.name} == set(range(len(rule.breaches)))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_layout_without_parallelism_breaks_no_rule(rule):
    assert rule.obeyed(one_layout(), job()).all()


def test_rules_of_fixed_degrees_are_those_that_have_a_breach_of_them():
    able = {rule.name for rule in RULES if any(isinstance(breach, FixedBreach) for breach in rule.breaches)}
    assert able == {rule.name for rule in RULES_OF_FIXED}


# By field: a stack that lacks the ability, what a client fixes, and a layout that asks for as much; without a layout
# the field is the same for all of a job's.
LACKING: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {
    "tensor_parallel": ("ddp", {"layout": {"tensor_parallel": 2}}, {"tensor_parallel": 2}),
    "pipeline_parallel": ("ddp", {"layout": {"pipeline_parallel": 2}}, {"pipeline_parallel": 2}),
    "virtual_pipeline": ("ddp", {"layout": {"virtual_pipeline": 2}}, {"virtual_pipeline": 2}),
    "context_parallel": ("ddp", {"layout": {"context_parallel": 2}}, {"context_parallel": 2}),
    "context_all_to_all": (
        "fsdp2",
        {"layout": {"context_all_to_all": 2}},
        {"context_parallel": 4, "context_all_to_all": 2},
    ),
    "expert_parallel": ("ddp", {"layout": {"expert_parallel": 2}}, {"expert_parallel": 2}),
    "zero_stage": ("megatron", {"layout": {"zero_stage": 3}}, {"zero_stage": 3}),
    "shard_group": ("ddp", {"layout": {"shard_group": 2}}, {"data_parallel": 4, "shard_group": 2}),
    "secondary_shard_group": (
        "fsdp2",
        {"layout": {"secondary_shard_group": 2}},
        {"data_parallel": 4, "secondary_shard_group": 2, "zero_stage": 3},
    ),
    "offload": ("fsdp2", {"layout": {"offload": "optimizer"}}, {"offload": 1, "zero_stage": 3}),
    "offload_target": ("megatron", {"layout": {"offload_target": "nvme"}}, None),
    "pipeline_layout": ("nanotron", {"layout": {"pipeline_layout": "even"}}, None),
    "pipeline_schedule": ("megatron", {"layout": {"pipeline_schedule": "gpipe"}}, None),
    "sequence_parallel": (
        "accelerate",
        {"layout": {"sequence_parallel": True}},
        {"tensor_parallel": 2, "sequence_parallel": True},
    ),
    "overlap/gradients": ("fsdp2", {"layout": {"overlap": Overlap(gradients=False)}}, None),
    "overlap/parameters": ("fsdp2", {"layout": {"overlap": Overlap(parameters=False)}}, None),
    "overlap/tensor_parallel": ("ddp", {"layout": {"overlap": Overlap(tensor_parallel=True)}}, None),
    "overlap/expert_parallel": (
        "fsdp2",
        {"layout": {"overlap": Overlap(expert_parallel=True)}},
        {"expert_parallel": 2, "data_parallel": 2, "expert_overlap": True, "zero_stage": 3},
    ),
    "gradient_dtype": ("megatron", {"optimizer": "muon", "gradient_dtype": "bf16"}, None),
    "optimizer_state_dtype": ("megatron", {"optimizer": "muon", "optimizer_state_dtype": "bf16"}, None),
    "activation_offload": ("fsdp2", {"activation_offload": True}, {"activation_offload": True}),
    "fused_cross_entropy": ("megatron", {"fused_cross_entropy": True}, {"fused_cross_entropy": True}),
    "recompute": ("accelerate", {"recompute": Recompute(mode="selective")}, {"recompute": SELECTIVE}),
}


@pytest.mark.parametrize("each", LAYOUT_ABILITIES, ids=lambda each: each.ability.field)
def test_what_a_stack_lacks_is_missed_of_fixed_fields_and_of_layouts(each):
    framework, fixed, layout = LACKING[each.ability.field]
    asked = question(**fixed)
    problem = each.ability.problem(asked, running_profile(load_profile(framework), None, asked.optimizer))
    assert problem is not None
    assert framework in problem
    assert layout is None or each.lacks(one_layout(**layout), job(framework)).all()


@pytest.mark.parametrize("each", LAYOUT_ABILITIES, ids=lambda each: each.ability.field)
def test_a_question_that_fixes_nothing_asks_for_no_ability(each):
    assert each.ability.problem(question(), load_profile("ddp")) is None
    assert not each.lacks(one_layout(), job("ddp")).any()
