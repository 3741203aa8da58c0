"""Megatron-LM's arguments: megatron-core's own config classes accept what they say.

Megatron-LM's parser is on no package index. Its arguments become fields of
megatron-core's TransformerConfig by their names (`core_transformer_config_from_args`).
"""

from __future__ import annotations

import argparse
import shlex
import typing
from typing import Any
from unittest import mock

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.plans import HiddenTraffic
from plimsoll.service.artifacts.training import training_artifacts
from plimsoll.service.launch.training import TrainingLaunch
from plimsoll.service.stacks.commands import training_launch
from plimsoll.service.workloads.commands.launches import Launch
from plimsoll.service.workloads.commands.shell import programs
from plimsoll.service.workloads.objects.pods import Container
from tests.service.admission.reviews import a_plain_container
from tests.service.stacks.launches import LLAMA_31_8B, QWEN_3_30B_A3B, launch

# megatron-core compiles small functions with torch.jit as it is imported, and misses Transformer Engine on a machine
# without a GPU.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

GPT_2 = {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024}
# Where `core_transformer_config_from_args` gives a field another name, or turns it round.
RENAMED = {
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
    "swiglu": "gated_linear_unit",
    "norm_epsilon": "layernorm_epsilon",
    "disable_bias_linear": "add_bias_linear",
    "num_experts": "num_moe_experts",
    "fp8_param_gather": "fp8_param",
    "fp8_format": "fp8",
}


def words(given: TrainingLaunch) -> list[str]:
    content = training_artifacts(given).files["megatron"]
    assert isinstance(content, str)
    return shlex.split(content)


def told(given: TrainingLaunch) -> dict[str, Any]:
    """Return the arguments by name, with underscores; one without a value is True."""
    found: dict[str, Any] = {}
    name = ""
    for word in words(given):
        if word.startswith("--"):
            name = word.removeprefix("--").replace("-", "_")
            found[name] = True
        else:
            found[name] = word if found[name] is True else f"{found[name]} {word}"
    return found


def config(given: TrainingLaunch) -> Any:
    """Return megatron-core's config of a plan's arguments."""
    import dataclasses

    from megatron.core.transformer import transformer_config
    from megatron.core.transformer.enums import AttnBackend
    from megatron.core.transformer.transformer_config import TransformerConfig

    fields = {field.name: field for field in dataclasses.fields(TransformerConfig)}
    values: dict[str, Any] = {}
    for name, word in told(given).items():
        field = RENAMED.get(name, name)
        if field in fields:
            values[field] = word if word is True else _number(word)
    values.update(_lists(words(given), TransformerConfig))
    if "disable_bias_linear" in told(given):
        values["add_bias_linear"] = False
    values["attention_backend"] = AttnBackend[values.get("attention_backend", "auto")]
    chunks = told(given).get("num_layers_per_virtual_pipeline_stage")
    if chunks is not None:
        stage = given.question.model.num_layers // given.layout.pipeline_parallel
        values["virtual_pipeline_model_parallel_size"] = stage // int(chunks)
    # Transformer Engine, which what is asked in FP8 needs, is in the images that a plan names and not on a machine
    # without GPUs.
    with mock.patch.object(transformer_config, "is_te_min_version", return_value=True):
        return TransformerConfig(**values, pipeline_dtype=_dtype(given))


def _lists(said: list[str], config_class: type) -> dict[str, Any]:
    """Return the options of several words, as Megatron-LM's parser makes them of the class's fields.

    megatron/training/argument_utils.py, `_extract_type`: a list's items are words of the items' type, `nargs="+"`.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name, hint in typing.get_type_hints(config_class).items():
        kind = typing.get_args(hint)[0] if type(None) in typing.get_args(hint) else hint
        if typing.get_origin(kind) is list and (item := typing.get_args(kind)[0]) in (int, str):
            parser.add_argument(f"--{name.replace('_', '-')}", nargs="+", type=item, default=argparse.SUPPRESS)
    return vars(parser.parse_known_args(said)[0])


def _dtype(given: TrainingLaunch) -> Any:
    import torch

    return torch.bfloat16 if "bf16" in told(given) else torch.float32


def _number(word: str) -> Any:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def test_megatron_core_accepts_a_dense_model_in_every_dimension_of_a_mesh():
    given = launch(
        "megatron", data_parallel=2, tensor_parallel=4, pipeline_parallel=4, virtual_pipeline=2, context_parallel=2,
        sequence_parallel=True, zero_stage=1, recompute="full", recompute_layers=4,
    )  # fmt: skip
    found = config(given)
    assert (found.tensor_model_parallel_size, found.pipeline_model_parallel_size) == (4, 4)
    assert (found.virtual_pipeline_model_parallel_size, found.context_parallel_size) == (2, 2)
    assert found.sequence_parallel
    # Four layers of a stage's eight, which are two of each of its two virtual stages' four.
    assert (found.recompute_granularity, found.recompute_method, found.recompute_num_layers) == ("full", "block", 2)
    sizes = (found.num_layers, found.hidden_size, found.ffn_hidden_size, found.num_query_groups, found.kv_channels)
    assert sizes == (32, 4096, 14336, 8, 128)
    assert (found.gated_linear_unit, found.add_bias_linear, found.layernorm_epsilon) == (True, False, 1e-05)


def test_copies_of_the_distributed_optimizer_are_told_and_come_back():
    given = launch("megatron", data_parallel=16, tensor_parallel=2, shard_group=4, zero_stage=1)
    assert told(given)["num_distributed_optimizer_instances"] == "4"
    whole = launch("megatron", data_parallel=16, tensor_parallel=2, zero_stage=1)
    assert "num_distributed_optimizer_instances" not in told(whole)


def test_megatron_core_accepts_experts_over_tensor_ranks():
    given = launch(
        "megatron", config=QWEN_3_30B_A3B, data_parallel=4, tensor_parallel=2, expert_parallel=8,
        sequence_parallel=True, zero_stage=1,
    )  # fmt: skip
    found = config(given)
    assert (found.expert_model_parallel_size, found.expert_tensor_parallel_size) == (8, 1)
    assert (found.num_moe_experts, found.moe_router_topk, found.moe_ffn_hidden_size) == (128, 8, 768)
    assert found.qk_layernorm


@pytest.mark.parametrize(
    ("layers", "layout"),
    [
        # With embedding and loss they are 32.
        (30, {"pipeline_layout": "account-for-embedding-and-loss"}),
        (30, {"pipeline_layout": "account-for-embedding-and-loss", "virtual_pipeline": 2}),
        (31, {"pipeline_layout": "account-for-loss"}),
        (32, {"pipeline_layout": "first=6,last=6"}),
        (32, {"pipeline_layout": "first=6,last=6", "virtual_pipeline": 2}),
        (32, {"pipeline_layout": "E|(t*11|)*2t*10L"}),
    ],
)
def test_megatron_core_accepts_stages_that_are_not_alike(layers: int, layout: dict[str, Any]):
    given = launch("megatron", config={**LLAMA_31_8B, "num_hidden_layers": layers}, pipeline_parallel=4, **layout)
    found, way = config(given), layout["pipeline_layout"]
    assert found.virtual_pipeline_model_parallel_size == (layout.get("virtual_pipeline") or None)
    assert found.account_for_embedding_in_pipeline_split == ("embedding" in way)
    assert found.account_for_loss_in_pipeline_split == ("loss" in way)
    assert str(found.pipeline_model_parallel_layout or way) == way


def test_megatron_core_accepts_a_list_of_virtual_stages():
    listed = {"pipeline_layout": "E|(t*2|)*6tL", "virtual_pipeline": 2}
    given = launch("megatron", config={**LLAMA_31_8B, "num_hidden_layers": 13}, pipeline_parallel=4, **listed)
    layout = config(given).pipeline_model_parallel_layout
    assert layout.virtual_pipeline_model_parallel_size == 2
    assert [len(stage[0]) + len(stage[1]) for stage in layout.layout] == [3, 4, 4, 4]
    assert not [name for name in told(given) if "virtual" in name]


def test_layers_are_recomputed_where_every_virtual_stage_has_as_many():
    # Of 8 layers in 1 + 3 on the first stage, two of each would be one and two.
    listed = {"pipeline_layout": "Et|tt|t*3|ttL", "virtual_pipeline": 2, "pipeline_parallel": 2, "recompute": "full"}
    given = {"config": {**LLAMA_31_8B, "num_hidden_layers": 8}, **listed}
    assert "some have too few layers" in " ".join(
        training_artifacts(launch("megatron", **given, recompute_layers=4)).missing["megatron"]
    )
    assert told(launch("megatron", **given, recompute_layers=2))["recompute_num_layers"] == "1"


@pytest.mark.parametrize(
    ("recompute", "expected"),
    [
        ("none", (None, None, None)),
        ("selective", ("selective", None, None)),
        ("full", ("full", "uniform", 1)),
    ],
)
def test_recompute_is_the_plans(recompute: str, expected: tuple[Any, ...]):
    found = config(launch("megatron", recompute=recompute))
    assert (found.recompute_granularity, found.recompute_method, found.recompute_num_layers) == expected


def test_the_batch_multiplies_out():
    given = launch("megatron", data_parallel=4, tensor_parallel=2, micro_batch_size=2)
    batches = told(given)
    # 64 sequences over 4 replicas of 2 are 8 micro-batches.
    assert int(batches["global_batch_size"]) // (int(batches["micro_batch_size"]) * 4) == 8
    assert given.layout.gradient_accumulation_steps == 8


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        ("bf16-mixed", {"bf16": True}),
        ("fp16-mixed", {"fp16": True}),
        ("fp32", {}),
        ("fp8-mixed", {"bf16": True, "fp8_format": "hybrid"}),
        ("mxfp8-mixed", {"bf16": True, "fp8_format": "e4m3", "fp8_recipe": "mxfp8"}),
        ("fp8-block-mixed", {"bf16": True, "fp8_format": "hybrid", "fp8_recipe": "blockwise"}),
        ("nvfp4-mixed", {"bf16": True, "fp4_format": "e2m1", "fp4_recipe": "nvfp4"}),
    ],
)
def test_precision_is_the_plans(precision: str, expected: dict[str, Any]):
    found = told(launch("megatron", asked={"precision": precision}))
    names = ("bf16", "fp16", "fp8_format", "fp8_recipe", "fp4_format", "fp4_recipe")
    assert {name: found[name] for name in names if name in found} == expected


@pytest.mark.parametrize("precision", ["fp8-mixed", "mxfp8-mixed", "fp8-block-mixed"])
def test_precision_and_weights_are_read_back(precision: str):
    asked = {"precision": precision, "low_precision_weights": True}
    read = read_back(launch("megatron", asked=asked, data_parallel=8, zero_stage=1)).request["training"]
    assert (read["precision"], read["low_precision_weights"]) == (precision, True)


@pytest.mark.parametrize(
    ("precision", "modules", "recipe"),
    [
        ("fp8-mixed", ("layernorm",), "tensorwise"),
        ("fp8-mixed", ("moe_act", "mla_up_proj"), "tensorwise"),
        ("fp8-mixed", ("mlp",), None),
        ("bf16-mixed", ("layernorm",), None),
    ],
)
def test_norms_recomputed_in_fp8_are_not_scaled_with_delay(
    precision: str, modules: tuple[str, ...], recipe: str | None
):
    given = launch("megatron", asked={"precision": precision}, recompute="selective", recompute_modules=modules)
    assert told(given).get("fp8_recipe") == recipe


@pytest.mark.parametrize("asked", [None, False, True])
def test_weights_lie_in_fp8_alone_where_that_is_asked_for(asked: bool | None):
    given = launch("megatron", asked={"precision": "fp8-mixed", "low_precision_weights": asked}, zero_stage=1)
    assert ("fp8_param_gather" in told(given)) is bool(asked)
    # transformer_config.py: "fp8_param must be used together with fp8 mode."
    assert bool(config(given).fp8_param) is bool(asked)


def test_what_is_scaled_as_it_goes_keeps_no_weights_in_fp8_beside_states_on_the_host():
    # arguments.py: "the optimizer cpu offload must be used in conjunction with `--fp8-recipe delayed`".
    asked = {"precision": "fp8-mixed", "low_precision_weights": True}
    host = {"offload": "optimizer", "zero_stage": 1}
    scaled = {"recompute": "selective", "recompute_modules": ("layernorm",)}
    assert "megatron" in training_artifacts(launch("megatron", asked=asked, **host)).files
    refused = training_artifacts(launch("megatron", asked=asked, **host, **scaled))
    assert "need delayed scaling" in " ".join(refused.missing["megatron"])


def test_the_distributed_optimizer_is_stage_1_and_gathers_behind_the_products():
    sharded, whole = told(launch("megatron", data_parallel=8, zero_stage=1)), told(launch("megatron", data_parallel=8))
    names = ("use_distributed_optimizer", "overlap_param_gather", "overlap_grad_reduce")
    assert [name in sharded for name in names] == [True, True, True]
    assert [name in whole for name in names] == [False, False, True]


def test_traffic_that_is_not_to_hide_has_no_option():
    hidden = HiddenTraffic(gradients=False, parameters=False, tensor_parallel=False, expert_parallel=False)
    found = told(launch("megatron", data_parallel=4, tensor_parallel=2, zero_stage=1, overlap=hidden))
    assert [name for name in found if "overlap" in name] == []


def test_tensor_parallel_traffic_has_an_option_where_it_is_asked_for():
    hidden = HiddenTraffic(gradients=False, parameters=False, tensor_parallel=True, expert_parallel=False)
    found = told(launch("megatron", tensor_parallel=2, sequence_parallel=True, overlap=hidden))
    assert found["tp_comm_overlap"] is True


def test_ranks_of_a_sequence_hide_the_reduction_of_gradients_as_replicas_do():
    hidden = HiddenTraffic(gradients=True, parameters=True, tensor_parallel=False, expert_parallel=False)
    found = told(launch("megatron", context_parallel=2, zero_stage=1, overlap=hidden))
    assert [name for name in found if "overlap" in name] == ["overlap_grad_reduce", "overlap_param_gather"]


def test_megatron_core_accepts_an_exchange_with_experts_that_is_hidden():
    hidden = HiddenTraffic(gradients=True, parameters=True, tensor_parallel=False, expert_parallel=True)
    given = launch(
        "megatron", config=QWEN_3_30B_A3B, data_parallel=8, pipeline_parallel=2, virtual_pipeline=2, expert_parallel=8,
        zero_stage=1, overlap=hidden,
    )  # fmt: skip
    assert config(given).overlap_moe_expert_parallel_comm
    command = training_artifacts(given).files["torchrun"]
    assert isinstance(command, str)
    assert shlex.split(command)[0] == "CUDA_DEVICE_MAX_CONNECTIONS=32"


def test_dtypes_asked_for_go_to_the_distributed_optimizer():
    asked = {"optimizer_state_dtype": "bf16", "gradient_dtype": "bf16"}
    found = told(launch("megatron", data_parallel=8, zero_stage=1, asked=asked))
    assert (found["exp_avg_dtype"], found["exp_avg_sq_dtype"], found["main_grads_dtype"]) == ("bf16", "bf16", "bf16")
    assert found["use_precision_aware_optimizer"] is True


def test_states_on_the_host_are_all_of_them_and_read_back():
    from megatron.core.optimizer import OptimizerConfig

    given = launch("megatron", data_parallel=8, zero_stage=1, offload="optimizer")
    found = told(given)
    assert [name in found for name in ("optimizer_cpu_offload", "use_precision_aware_optimizer")] == [True, True]
    # Megatron-Core's own default is none of them.
    assert (float(found["optimizer_offload_fraction"]), OptimizerConfig().optimizer_offload_fraction) == (1.0, 0.0)
    assert not [name for name in found if name.endswith("_dtype")]
    assert read_back(given).request["layout"]["offload"] == "optimizer"


def test_activations_on_the_host_are_megatron_cores_and_read_back():
    given = launch("megatron", data_parallel=8, zero_stage=1, activation_offload=True, offload_modules=PARTS)
    found = config(given)
    assert found.fine_grained_activation_offloading
    assert found.offload_modules == list(PARTS)
    assert read_back(given).request["training"]["activation_offload"] == {"modules": list(PARTS)}
    # Megatron-LM asks for it where Transformer Engine is 2.10 or later (arguments.py, validate_args).
    assert "NVTE_CPU_OFFLOAD_V1=1" in str(training_artifacts(given).files["torchrun"])


@pytest.mark.parametrize(("exchanging", "kind", "sizes"), [(1, None, None), (2, "a2a+p2p", "2 2"), (4, "a2a", None)])
def test_ranks_that_exchange_heads_are_told(exchanging, kind, sizes):
    given = launch("megatron", context_parallel=4, context_all_to_all=exchanging)
    found = told(given)
    assert found.get("cp_comm_type") == kind
    assert found.get("hierarchical_context_parallel_sizes") == sizes
    assert config(given).hierarchical_context_parallel_sizes == (sizes and [2, 2])
    assert read_back(given).request["layout"]["context_all_to_all"] == exchanging


def test_whole_layers_on_the_host_are_told_without_what_keeps_weights_of_parts():
    given = launch("megatron", data_parallel=8, zero_stage=1, activation_offload=True, offload_layers=20)
    found = config(given)
    assert (found.cpu_offloading_num_layers, found.fine_grained_activation_offloading) == (20, False)
    assert read_back(given).request["training"]["activation_offload"] == {"layers": 20}
    assert "NVTE_CPU_OFFLOAD_V1" not in str(training_artifacts(given).files["torchrun"])


PARTS = ("qkv_linear", "core_attn", "attn_proj")


def test_eager_attention_is_unfused():
    assert told(launch("megatron", asked={"attention": "eager"}))["attention_backend"] == "unfused"


def test_momentum_belongs_to_sgd():
    found = told(launch("megatron", asked={"optimizer": "sgd-momentum"}))
    assert (found["optimizer"], found["sgd_momentum"]) == ("sgd", "0.9")


@pytest.mark.parametrize(("zero_stage", "name"), [(0, "muon"), (1, "dist_muon")])
def test_muon_has_no_distributed_optimizer_and_hides_nothing(zero_stage: int, name: str):
    # Megatron-LM core_v0.16.1, training/arguments.py: "does not support distributed optimizer", "overlap grad reduce",
    # "overlap param gather"; 1,000 GPUs.
    asked = {"optimizer": "muon", "global_batch_size": 2000}
    given = launch("megatron", data_parallel=1000, zero_stage=zero_stage, asked=asked)
    found = told(given)
    assert found["optimizer"] == name
    assert not [option for option in found if "distributed_optimizer" in option or "overlap" in option]
    read = read_back(given)
    assert (read.request["training"]["optimizer"], read.request["layout"]["zero_stage"]) == ("muon", zero_stage)


def test_megatron_core_has_the_optimizer_s_options_as_fields():
    from megatron.core.optimizer import OptimizerConfig

    found = told(launch("megatron", asked={"optimizer": "muon"}))
    of_muon = {option: value for option, value in found.items() if option.startswith("muon")}
    assert of_muon == {"muon_tp_mode": OptimizerConfig().muon_tp_mode}


def test_later_releases_name_muon_with_the_distributed_optimizer():
    # d98e8a6, training/arguments.py: "Use --optimizer muon --use-distributed-optimizer instead."
    given = launch("megatron", data_parallel=8, asked={"optimizer": "muon"})
    read = read_back(given, ["--use-distributed-optimizer", "--overlap-grad-reduce"])
    assert (read.request["training"]["optimizer"], read.request["layout"]["zero_stage"]) == ("muon", 1)
    assert read.request["layout"]["overlap"]["gradients"] is True


@pytest.mark.parametrize(("ranks", "is_read"), [(1, True), (2, False)])
def test_muon_that_gathers_blocks_of_tensor_ranks_is_not_read(ranks: int, is_read: bool):
    given = launch("megatron", tensor_parallel=ranks, asked={"optimizer": "muon"})
    assert isinstance(read_back(given, ["--muon-tp-mode", "duplicated"]), Launch) == is_read


def test_muon_takes_no_dtypes_of_states():
    given = launch("megatron", zero_stage=1, asked={"optimizer": "muon", "optimizer_state_dtype": "bf16"})
    assert "Muon has no dtypes" in " ".join(training_artifacts(given).missing["megatron"])


def read_back(given: TrainingLaunch, more: list[str] | None = None) -> Any:
    """Return what is read of a plan's command with further options behind it."""
    command = ("bash", "-c", str(training_artifacts(given).files["torchrun"]))
    container = Container(name="main", image="", command=command, args=(), env={}, resources={}, pointer="")
    (program,) = programs(container)
    return training_launch([*program.words, *(more or [])], given.layout.gpus, container)


def test_gpt_2_learns_its_positions():
    found = told(launch("megatron", config=GPT_2, asked={"sequence_length": 1024}, steps=10))
    assert (found["position_embedding_type"], found["normalization"]) == ("learned_absolute", "LayerNorm")
    assert (found["ffn_hidden_size"], found["train_iters"]) == ("3072", "10")
    assert "untie_embeddings_and_output_weights" not in found


def test_positions_are_scaled_as_llama_3_does():
    found = told(launch("megatron"))
    assert (found["use_rope_scaling"], found["rope_scaling_factor"], found["rotary_base"]) == (True, "8.0", "500000")


@pytest.mark.parametrize("target", ["megatron", "pai-megatron"])
def test_a_run_without_a_number_of_tokens_leaves_its_steps_to_the_reader(target: str):
    # Megatron-LM, training/arguments.py: without --train-iters and --train-samples there is nothing to train.
    model = {**LLAMA_31_8B, "model_type": "qwen2"} if target == "pai-megatron" else LLAMA_31_8B
    content = training_artifacts(launch("megatron", config=model)).files[target]
    assert "--train-iters $TRAIN_ITERS" in content


def test_what_the_catalogue_leaves_away_is_asked_of_the_reader():
    bare = {name: value for name, value in LLAMA_31_8B.items() if not name.startswith(("rope", "rms"))}
    listed = told(launch("megatron", config=bare, model_name="org/name"))
    given = told(launch("megatron", config=bare))
    assert (listed["rotary_base"], listed["norm_epsilon"]) == ("$ROPE_THETA", "$NORM_EPSILON")
    # A config of the reader's own that leaves a key away means transformers' default.
    assert (given["rotary_base"], given["norm_epsilon"]) == ("10000", "1e-06")


@pytest.mark.parametrize(
    ("model", "base", "epsilon"),
    [
        ("meta-llama/Llama-2-7b-hf", "10000", "1e-05"),
        ("meta-llama/Llama-3.1-70B", "500000", "1e-05"),
        ("mistralai/Mixtral-8x7B-v0.1", "1000000", "1e-05"),
        ("Qwen/Qwen2.5-72B-Instruct", "1000000", "1e-06"),
        ("Qwen/Qwen3-8B", "1000000", "1e-06"),
    ],
)
def test_models_of_the_catalogue_are_described_whole(model: str, base: str, epsilon: str):
    # As their own config.json has it.
    listed = told(launch("megatron", config=catalogue().model(model).config, model_name=model))
    assert (listed["rotary_base"], listed["norm_epsilon"]) == (base, epsilon)


def test_the_command_is_read_back_as_the_plan():
    degrees = {"data_parallel": 2, "tensor_parallel": 2, "pipeline_parallel": 4, "context_parallel": 1}
    given = launch("megatron", **degrees, virtual_pipeline=2, zero_stage=1, sequence_parallel=True, recompute="full")
    command = ("bash", "-c", str(training_artifacts(given).files["torchrun"]))
    container = Container(name="main", image="", command=command, args=(), env={}, resources={}, pointer="")
    (program,) = programs(container)
    read = training_launch(program.words, given.layout.gpus, container)
    assert isinstance(read, Launch)
    layout, training = read.request["layout"], read.request["training"]
    assert {name: layout[name] for name in degrees} == degrees
    assert (layout["virtual_pipeline"], layout["zero_stage"], layout["sequence_parallel"]) == (2, 1, True)
    assert (training["micro_batch_size"], training["global_batch_size"]) == (1, 64)
    assert (training["recompute"], training["precision"]) == ("full", "bf16-mixed")


@pytest.mark.parametrize(
    "layout", [{"pipeline_layout": "first=6,last=6", "virtual_pipeline": 2}, {"pipeline_layout": "E|(t*11|)*2t*10L"}]
)
def test_unlike_stages_are_read_back_as_the_plan(layout: dict[str, Any]):
    given = launch("megatron", pipeline_parallel=4, zero_stage=1, **layout)
    command = ("bash", "-c", str(training_artifacts(given).files["torchrun"]))
    container = Container(name="main", image="", command=command, args=(), env={}, resources={}, pointer="")
    (program,) = programs(container)
    read = training_launch(program.words, given.layout.gpus, container)
    assert isinstance(read, Launch)
    assert read.request["layout"]["pipeline_layout"] == layout["pipeline_layout"]
    assert read.request["layout"]["virtual_pipeline"] == layout.get("virtual_pipeline", 1)


def test_layers_for_further_tokens_are_megatron_cores_and_read_back():
    given = launch("megatron", data_parallel=4, asked={"multi_token_prediction": 1})
    assert config(given).mtp_num_layers == 1
    assert config(given).mtp_loss_scaling_factor == 0.1
    command = ("bash", "-c", str(training_artifacts(given).files["torchrun"]))
    (program,) = programs(Container(name="main", image="", command=command, args=(), env={}, resources={}, pointer=""))
    read = training_launch(program.words, given.layout.gpus, a_plain_container())
    assert isinstance(read, Launch)
    assert read.request["training"]["multi_token_prediction"] == 1


def test_torchrun_starts_megatrons_script_with_all_arguments():
    given = launch("megatron", tensor_parallel=2, data_parallel=4)
    command = training_artifacts(given).files["torchrun"]
    assert isinstance(command, str)
    variable, program, *others = shlex.split(command)
    assert (variable, program) == ("CUDA_DEVICE_MAX_CONNECTIONS=1", "torchrun")
    assert others[others.index("pretrain_gpt.py") + 1 :] == words(given)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"asked": {"precision": "bf16"}}, "no option for precision bf16"),
        ({"asked": {"optimizer": "lion"}}, "no optimizer lion"),
        ({"asked": {"gradient_dtype": "bf16"}}, "need its distributed optimizer"),
        ({"zero_stage": 1, "asked": {"optimizer_state_dtype": "int8"}}, "--exp-avg-dtype cannot be int8"),
        ({"zero_stage": 1, "asked": {"gradient_dtype": "fp16"}}, "--main-grads-dtype cannot be fp16"),
        (
            {"pipeline_parallel": 4, "virtual_pipeline": 2, "recompute": "full", "recompute_layers": 3},
            "3 recomputed layers do not divide over 2 virtual stages",
        ),
        ({"config": {**LLAMA_31_8B, "model_type": "gemma"}}, "does not write Megatron-LM's arguments for gemma yet"),
        ({"config": {**LLAMA_31_8B, "attention_bias": True}}, "biases in the attention's matrices alone"),
        ({"config": {**LLAMA_31_8B, "mlp_bias": True}}, "biases in the feed-forward's matrices alone"),
        ({"config": {**LLAMA_31_8B, "model_type": "mistral", "sliding_window": 4096}}, "Sliding windows"),
        ({"config": {**LLAMA_31_8B, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}}, "as Llama 3 does only"),
        ({"config": {**QWEN_3_30B_A3B, "mlp_only_layers": [0]}}, "Layers without experts"),
        ({"config": {**QWEN_3_30B_A3B, "decoder_sparse_step": 2}}, "Experts in every few layers"),
    ],
)
def test_what_megatron_cannot_be_told_is_not_written(changes: dict[str, Any], reason: str):
    found = training_artifacts(launch("megatron", **changes))
    assert "megatron" not in found.files
    assert reason in " ".join(found.missing["megatron"])
    # Its command is then the reader's own script's.
    assert str(found.files["torchrun"]).endswith(" train.py")


@pytest.mark.parametrize(
    ("kernels", "fusion"), [(None, (False, None)), ("compiled", (True, "native")), ("fused", (True, "te"))]
)
def test_a_fused_loss_is_told_with_what_fuses_it(kernels: str | None, fusion: tuple[bool, str | None]):
    said = words(launch("megatron", asked={"kernels": kernels}))
    assert "--cross-entropy-loss-fusion" in said or not fusion[0]
    option = "--cross-entropy-fusion-impl"
    assert (said[said.index(option) + 1] if option in said else None) == fusion[1]
