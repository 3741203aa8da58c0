"""Megatron-Bridge's script: megatron-core's own config classes take what it says, Bridge's fields are its release's.

Megatron-Bridge itself does not start without a GPU and Transformer Engine. Its configs of the model, the optimizer and
the replicas are megatron-core's classes; of the others the fields below are those of 0.3.1.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from typing import Any

import pytest

from plimsoll.planners.plans import HiddenTraffic
from plimsoll.planners.questions import Lora
from plimsoll.service.launch.training import TrainingLaunch
from tests.service.stacks.launches import LLAMA_31_8B, QWEN_3_30B_A3B, launch, why_missing, written

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

NAME = "megatron-bridge"
# training/mixed_precision.py
PRECISION_FIELDS = (
    "fp32", "fp16", "bf16", "params_dtype", "pipeline_dtype", "autocast_dtype", "autocast_enabled",
    "grad_reduce_in_fp32", "fp8", "fp8_recipe", "first_last_layers_bf16", "fp8_margin", "fp8_amax_history_len",
    "fp8_amax_compute_algo", "fp8_wgrad", "fp8_dot_product_attention", "fp8_multi_head_attention", "fp8_param",
    "fp8_param_gather",
    "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16", "reuse_grad_buf_for_mxfp8_param_ag",
)  # fmt: skip
RECIPES = (
    "bf16_mixed", "fp16_mixed", "bf16_with_fp8_current_scaling_mixed", "bf16_with_fp8_delayed_scaling_mixed",
    "bf16_with_mxfp8_mixed", "bf16_with_fp8_subchannel_scaling_mixed", "bf16_with_nvfp4_mixed",
)  # fmt: skip
# training/comm_overlap.py
OVERLAP_FIELDS = (
    "tp_comm_overlap", "overlap_grad_reduce", "overlap_param_gather", "overlap_moe_expert_parallel_comm",
)  # fmt: skip
# training/config.py; GPTDatasetConfig has DataloaderConfig's and megatron-core's.
TRAINING_FIELDS = ("micro_batch_size", "global_batch_size", "train_iters")
CHECKPOINT_FIELDS = ("save", "load", "ckpt_format", "pretrained_checkpoint")
FINETUNING_FIELDS = ("dataset_root", "seq_length")
# peft/canonical_lora.py
LORA_FIELDS = ("target_modules", "dim", "alpha", "dropout")
TOKENIZER_FIELDS = ("tokenizer_type", "tokenizer_model")
CONTAINER_FIELDS = (
    "model", "train", "optimizer", "scheduler", "ddp", "dataset", "logger", "tokenizer", "checkpoint", "comm_overlap",
    "mixed_precision", "peft",
)  # fmt: skip
# models/gpt_provider.py: what a provider has beside TransformerConfig's.
PROVIDER_FIELDS = ("seq_length",)


class OfFields:
    """An object that takes attributes of some names alone."""

    def __init__(self, names: Any, **values: Any) -> None:
        object.__setattr__(self, "names", frozenset(names))
        for name, value in values.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        assert name in self.names, name
        object.__setattr__(self, name, value)


def of(*names: str) -> Any:
    return lambda **values: OfFields(names, **values)


def field_names(config_class: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(config_class))


@pytest.fixture
def bridge(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Bridge's modules, with megatron-core's classes where those are its own."""
    from megatron.core.datasets.gpt_dataset import GPTDatasetConfig
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer.transformer_config import TransformerConfig

    model = OfFields((*field_names(TransformerConfig), *PROVIDER_FIELDS))
    loaded: list[str] = []

    def from_hf_pretrained(path: str) -> Any:
        loaded.append(path)
        return types.SimpleNamespace(to_megatron_provider=lambda load_weights: model)

    def recipe(name: str) -> Any:
        assert name in RECIPES
        return OfFields(PRECISION_FIELDS, fp8_recipe=name)

    parts: dict[str, dict[str, Any]] = {
        "": {"AutoBridge": types.SimpleNamespace(from_hf_pretrained=from_hf_pretrained), "loaded": loaded},
        "recipes": {},
        "recipes.utils": {},
        "recipes.utils.optimizer_utils": {
            "distributed_fused_adam_with_cosine_annealing": lambda max_lr: (OptimizerConfig(lr=max_lr), None)
        },
        "training": {},
        "training.comm_overlap": {"CommOverlapConfig": of(*OVERLAP_FIELDS)},
        "training.config": {
            "CheckpointConfig": of(*CHECKPOINT_FIELDS),
            "ConfigContainer": of(*CONTAINER_FIELDS),
            "DistributedDataParallelConfig": DistributedDataParallelConfig,
            "GPTDatasetConfig": of("seq_length", "dataloader_type", *field_names(GPTDatasetConfig)),
            "FinetuningDatasetConfig": of(*FINETUNING_FIELDS),
            "LoggerConfig": of(),
            "TokenizerConfig": of(*TOKENIZER_FIELDS),
            "TrainingConfig": of(*TRAINING_FIELDS),
        },
        "peft": {},
        "peft.canonical_lora": {"CanonicalLoRA": of(*LORA_FIELDS)},
        "training.finetune": {"finetune": None},
        "training.gpt_step": {"forward_step": None},
        "training.mixed_precision": {"get_mixed_precision_config": recipe},
        "training.pretrain": {"pretrain": None},
    }
    for path, members in parts.items():
        module = types.ModuleType(f"megatron.bridge.{path}".rstrip("."))
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return model


def ran(given: TrainingLaunch, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a launch's script, but for the training, and return its config."""
    monkeypatch.setenv("TRAIN_ITERS", "10")
    names: dict[str, Any] = {"__name__": "script"}
    exec(compile(written(NAME, given), "script", "exec"), names)  # noqa: S102 - a file that this service wrote
    return names["config"]


def test_the_layout_is_the_plan_s(bridge: Any, monkeypatch: pytest.MonkeyPatch):
    degrees = {"tensor_parallel": 4, "pipeline_parallel": 4, "virtual_pipeline": 2, "data_parallel": 2}
    given = launch(NAME, **degrees, zero_stage=1, sequence_parallel=True, model_name="meta-llama/Llama-3.1-8B")
    found = ran(given, monkeypatch)
    model = found.model
    assert (model.tensor_model_parallel_size, model.pipeline_model_parallel_size) == (4, 4)
    assert (model.virtual_pipeline_model_parallel_size, model.sequence_parallel) == (2, True)
    assert (found.train.micro_batch_size, found.train.global_batch_size, found.train.train_iters) == (1, 64, 10)
    assert (model.seq_length, found.dataset.seq_length) == (8192, 8192)
    assert sys.modules["megatron.bridge"].loaded == ["meta-llama/Llama-3.1-8B"]


def test_gradients_are_in_16_bits_unless_32_are_asked_for(bridge: Any, monkeypatch: pytest.MonkeyPatch):
    for asked, is_wide in ((None, False), ("bf16", False), ("fp32", True)):
        found = ran(launch(NAME, asked={"gradient_dtype": asked}, data_parallel=8, zero_stage=1), monkeypatch)
        assert (found.ddp.grad_reduce_in_fp32, found.mixed_precision.grad_reduce_in_fp32) == (is_wide, is_wide)


@pytest.mark.parametrize(
    ("asked", "layout", "recipe", "is_alone"),
    [
        ({"precision": "bf16-mixed"}, {}, "bf16_mixed", None),
        ({"precision": "fp8-mixed"}, {}, "bf16_with_fp8_current_scaling_mixed", True),
        (
            {"precision": "fp8-mixed", "low_precision_weights": False},
            {"offload": "optimizer"},
            "bf16_with_fp8_current_scaling_mixed",
            False,
        ),
        ({"precision": "mxfp8-mixed"}, {}, "bf16_with_mxfp8_mixed", True),
        # Its recipe leaves fp8_param_gather off, the only one.
        ({"precision": "fp8-block-mixed"}, {}, "bf16_with_fp8_subchannel_scaling_mixed", False),
        ({"precision": "nvfp4-mixed"}, {}, "bf16_with_nvfp4_mixed", None),
        # Megatron-LM, training/arguments.py: states on the host with --fp8-param-gather need --fp8-recipe delayed.
        ({"precision": "fp8-mixed"}, {"offload": "optimizer"}, "bf16_with_fp8_delayed_scaling_mixed", True),
    ],
)
def test_precision_is_a_recipe_of_bridge_s(
    asked: dict[str, Any],
    layout: dict[str, Any],
    recipe: str,
    is_alone: bool | None,
    bridge: Any,
    monkeypatch: pytest.MonkeyPatch,
):
    precision = ran(launch(NAME, asked=asked, zero_stage=1, **layout), monkeypatch).mixed_precision
    assert (precision.fp8_recipe, getattr(precision, "fp8_param_gather", None)) == (recipe, is_alone)


def test_states_on_the_host_or_narrow_ones_need_the_precision_aware_optimizer(
    bridge: Any, monkeypatch: pytest.MonkeyPatch
):
    import torch

    plain = ran(launch(NAME, data_parallel=8, zero_stage=1), monkeypatch).optimizer
    host = ran(launch(NAME, data_parallel=8, zero_stage=1, offload="optimizer"), monkeypatch).optimizer
    narrow = ran(launch(NAME, asked={"optimizer_state_dtype": "bf16"}, zero_stage=1), monkeypatch).optimizer
    assert [each.use_precision_aware_optimizer for each in (plain, host, narrow)] == [False, True, True]
    assert (host.optimizer_cpu_offload, host.optimizer_offload_fraction) == (True, 1.0)
    assert (narrow.exp_avg_dtype, narrow.exp_avg_sq_dtype, narrow.main_grads_dtype) == (torch.bfloat16,) * 3


def test_experts_and_unlike_stages_are_the_plan_s(bridge: Any, monkeypatch: pytest.MonkeyPatch):
    hidden = HiddenTraffic(gradients=True, parameters=True, tensor_parallel=False, expert_parallel=True)
    degrees = {"data_parallel": 8, "expert_parallel": 8, "pipeline_parallel": 2, "virtual_pipeline": 2}
    given = launch(
        NAME, config=QWEN_3_30B_A3B, **degrees, zero_stage=1, overlap=hidden, pipeline_layout="account-for-embedding"
    )
    found = ran(given, monkeypatch)
    assert (found.model.expert_model_parallel_size, found.model.expert_tensor_parallel_size) == (8, 1)
    assert found.model.account_for_embedding_in_pipeline_split
    assert found.comm_overlap.overlap_moe_expert_parallel_comm
    # training/comm_overlap.py: "disable moe_shared_expert_overlap when enabling overlap_moe_expert_parallel_comm"
    assert not found.model.moe_shared_expert_overlap
    ends = launch(NAME, pipeline_parallel=4, pipeline_layout="first=7,last=7")
    model = ran(ends, monkeypatch).model
    assert model.mtp_num_layers is None
    assert (model.num_layers_in_first_pipeline_stage, model.num_layers_in_last_pipeline_stage) == (7, 7)


def test_a_list_of_stages_says_how_many_a_rank_has(bridge: Any, monkeypatch: pytest.MonkeyPatch):
    # training/comm_overlap.py asks for virtual stages before the list is read.
    listed = "Et|" + "t|" * 30 + "tL"
    given = launch(NAME, pipeline_parallel=4, virtual_pipeline=8, pipeline_layout=listed)
    model = ran(given, monkeypatch).model
    assert (model.pipeline_model_parallel_layout, model.virtual_pipeline_model_parallel_size) == (listed, 8)


def test_buffers_are_shared_with_weights_in_blocks_of_32_alone(bridge: Any, monkeypatch: pytest.MonkeyPatch):
    asked = {"precision": "mxfp8-mixed", "low_precision_weights": False}
    precision = ran(launch(NAME, asked=asked, zero_stage=1), monkeypatch).mixed_precision
    assert (precision.fp8_param_gather, precision.reuse_grad_buf_for_mxfp8_param_ag) == (False, False)


def test_recompute_and_context_are_the_plan_s(bridge: Any, monkeypatch: pytest.MonkeyPatch):
    given = launch(
        NAME,
        context_parallel=8,
        context_all_to_all=4,
        recompute="full",
        recompute_layers=4,
        data_parallel=2,
        zero_stage=1,
    )
    model = ran(given, monkeypatch).model
    assert (model.recompute_granularity, model.recompute_method, model.recompute_num_layers) == ("full", "block", 4)
    assert (model.cp_comm_type, model.hierarchical_context_parallel_sizes) == ("a2a+p2p", [4, 2])


def test_adapters_are_the_checkpoint_s_matrices_one_by_one(bridge: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PRETRAINED", "folder")
    monkeypatch.setenv("DATASET_ROOT", "data")
    lora = Lora(rank=8, target_modules=("q_proj", "v_proj", "down_proj"))
    given = launch(
        NAME, asked={"method": "lora", "lora": lora, "precision": "fp8-mixed"}, data_parallel=8, zero_stage=1
    )
    found = ran(given, monkeypatch)
    assert found.peft.target_modules == ["linear_q", "linear_v", "linear_fc2"]
    assert (found.peft.dim, found.checkpoint.pretrained_checkpoint, found.dataset.dataset_root) == (8, "folder", "data")
    assert (found.mixed_precision.fp8_param_gather, found.ddp.average_in_collective) == (True, True)
    # training/config.py: "When finetuning with CP>1, calculate_per_token_loss must be True".
    over_context = ran(
        launch(NAME, asked={"method": "lora", "lora": lora}, context_parallel=2, zero_stage=1), monkeypatch
    )
    assert (over_context.model.calculate_per_token_loss, over_context.ddp.average_in_collective) == (True, False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"config": {**LLAMA_31_8B, "model_type": "falcon"}}, "no bridge from falcon"),
        ({"asked": {"precision": "fp32"}}, "no fp32 recipe"),
        ({"asked": {"method": "lora", "lora": Lora(target_modules=("lm_head",))}}, "not told of lm_head"),
        ({"asked": {"method": "lora", "lora": Lora(modules_to_save=("lm_head",))}}, "no copies of whole modules"),
        (
            {
                "asked": {"precision": "fp8-mixed"},
                "offload": "optimizer",
                "zero_stage": 1,
                "recompute": "selective",
                "recompute_modules": ("layernorm",),
            },
            "need delayed scaling",
        ),
    ],
)
def test_what_bridge_cannot_be_told_is_said(changes: dict[str, Any], words: str):
    assert words in why_missing(NAME, launch(NAME, **changes))
