"""A Megatron-Bridge training script: the model by its checkpoint's config, and the plan in Bridge's config container.

Names: NVIDIA-NeMo/Megatron-Bridge 0.3 and later, `training/config.py`, `training/mixed_precision.py`,
`training/comm_overlap.py`, `recipes/utils/optimizer_utils.py`; the model's are fields of Megatron-Core's
`TransformerConfig`. Its defaults are those of its performance recipes (`perf_recipes/_common.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.planners.jobs.pipeline_layouts import ACCOUNTED, ENDS, EVEN, LISTED, read_pipeline_layout
from plimsoll.planners.plans import Layout
from plimsoll.service.launch.script import OWN_SCRIPT, Script
from plimsoll.service.launch.training import LEARNING_RATE, Placeholder, Target, TrainingLaunch, given_reasons
from plimsoll.service.stacks.megatron.context import context_options
from plimsoll.service.stacks.megatron.launch import GRADIENT_DTYPES, STATE_DTYPES, recompute_fields, scales_as_it_goes

FILE = "megatron_bridge_train.py"
# models/*/: families that `AutoBridge` turns into a Megatron-Core model of text.
FAMILIES = frozenset({
    "deepseek_v2", "deepseek_v3", "gemma", "gemma2", "gemma3_text", "glm4_moe", "gpt_oss", "kimi_k2", "llama",
    "mistral", "nemotron", "nemotron_h", "olmoe", "qwen2", "qwen3", "qwen3_moe", "qwen3_next",
})  # fmt: skip
RECIPES: Mapping[str, str] = {"bf16-mixed": "bf16_mixed", "fp16-mixed": "fp16_mixed"}
# Products are scaled by their present values, as in the published fp8 runs; states on the host need the older scaling
# where weights lie in fp8 alone (Megatron-LM, training/arguments.py).
PRESENT_SCALES, DELAYED_SCALES = "bf16_with_fp8_current_scaling_mixed", "bf16_with_fp8_delayed_scaling_mixed"
TORCH_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "uint8"}
HEADER = '''"""Trains {model} as it was planned; start it on every rank with torchrun.

DATA_PREFIX names a data set in Megatron's indexed format. Without it the data are made up.
"""

import os

import torch
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.utils.optimizer_utils import distributed_fused_adam_with_cosine_annealing
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.config import (
    CheckpointConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    GPTDatasetConfig,
    LoggerConfig,
    TokenizerConfig,
    TrainingConfig,
)
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import get_mixed_precision_config
from megatron.bridge.training.pretrain import pretrain
from megatron.core.transformer.enums import AttnBackend

prefix = os.environ.get("DATA_PREFIX")
'''


def why_not(launch: TrainingLaunch) -> tuple[str, ...]:
    """Return what of a plan the script cannot say."""
    question, layout, family = launch.question, launch.layout, launch.model_config.get("model_type")
    is_delayed = layout.offload != "none" and _holds_fp8_alone(launch)
    return given_reasons(
        (family not in FAMILIES, f"Megatron-Bridge has no bridge from {family}."),
        (question.precision not in (*RECIPES, "fp8-mixed"), f"Megatron-Bridge has no {question.precision} recipe."),
        (question.optimizer != "adamw", f"Megatron-Bridge's {question.optimizer} is not written yet."),
        (
            question.optimizer_state_dtype not in (None, *STATE_DTYPES),
            f"exp_avg_dtype cannot be {question.optimizer_state_dtype}.",
        ),
        (
            question.gradient_dtype not in (None, *GRADIENT_DTYPES),
            f"Gradients of Megatron-Core cannot be {question.gradient_dtype}.",
        ),
        (
            question.precision == "fp16-mixed" and _is_precision_aware(launch),
            "Dtypes of states, and states on the host, are not written beside fp16.",
        ),
        (
            is_delayed and scales_as_it_goes(launch),
            "optimizer_cpu_offload and fp8_param_gather need delayed scaling, and the recomputed modules another.",
        ),
        (
            layout.recompute_layers is not None and layout.recompute_layers % layout.virtual_pipeline != 0,
            f"{layout.recompute_layers} recomputed layers do not divide over {layout.virtual_pipeline} virtual stages.",
        ),
    )


def bridge_script(launch: TrainingLaunch) -> str:
    """Return the script."""
    hub = repr(launch.model_path)
    return "\n".join(
        [
            HEADER.format(model=launch.model_path),
            f"model = AutoBridge.from_hf_pretrained({hub}).to_megatron_provider(load_weights=False)",
            *_assigned("model", _model_fields(launch)),
            "",
            f"precision = get_mixed_precision_config({_recipe(launch)!r})",
            *_assigned("precision", _precision_fields(launch)),
            "",
            f"optimizer, scheduler = distributed_fused_adam_with_cosine_annealing(max_lr={LEARNING_RATE})",
            *_assigned("optimizer", _optimizer_fields(launch)),
            "",
            "config = ConfigContainer(",
            "    model=model,",
            f"    train={_call('TrainingConfig', _train_fields(launch))},",
            "    optimizer=optimizer,",
            "    scheduler=scheduler,",
            f"    ddp={_call('DistributedDataParallelConfig', _replica_fields(launch))},",
            f"    dataset={_call('GPTDatasetConfig', _data_fields(launch))},",
            "    logger=LoggerConfig(),",
            f'    tokenizer=TokenizerConfig(tokenizer_type="HuggingFaceTokenizer", tokenizer_model={hub}),',
            '    checkpoint=CheckpointConfig(save="checkpoints", load="checkpoints", ckpt_format="torch_dist"),',
            f"    comm_overlap={_call('CommOverlapConfig', _overlap_fields(launch))},",
            "    mixed_precision=precision,",
            ")",
            "",
            'if __name__ == "__main__":',
            "    pretrain(config, forward_step)",
        ]
    )


class Code(str):
    """A value that is written as it stands."""

    __slots__ = ()


def _assigned(name: str, fields: Mapping[str, Any]) -> list[str]:
    return [f"{name}.{field} = {_code(value)}" for field, value in fields.items() if value is not None]


def _call(name: str, fields: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{field}={_code(value)}' for field, value in fields.items() if value is not None)})"


def _code(value: Any) -> str:
    if isinstance(value, Placeholder):
        return f'int(os.environ["{value.removeprefix("$")}"])'
    return str(value) if isinstance(value, Code) else repr(list(value) if isinstance(value, tuple) else value)


def _dtype(name: str | None) -> Code | None:
    return None if name is None else Code(f"torch.{TORCH_DTYPES[name]}")


def _model_fields(launch: TrainingLaunch) -> dict[str, Any]:
    """Return the fields of Megatron-Core's config that the plan decides."""
    question, layout = launch.question, launch.layout
    has_experts_apart = layout.expert_parallel > 1
    return {
        "seq_length": question.sequence_length,
        "tensor_model_parallel_size": layout.tensor_parallel,
        "sequence_parallel": layout.sequence_parallel,
        "pipeline_model_parallel_size": layout.pipeline_parallel,
        "pipeline_dtype": Code("torch.float16" if question.precision == "fp16-mixed" else "torch.bfloat16"),
        **_pipeline_fields(layout),
        "context_parallel_size": layout.context_parallel,
        **_context_fields(layout),
        "expert_model_parallel_size": layout.expert_parallel if has_experts_apart else None,
        "expert_tensor_parallel_size": launch.expert_tensor_parallel if has_experts_apart else None,
        "mtp_num_layers": question.multi_token_prediction or None,
        "attention_backend": Code("AttnBackend.flash" if question.attention == "flash" else "AttnBackend.unfused"),
        "cross_entropy_loss_fusion": True,
        "cross_entropy_fusion_impl": "te",
        **recompute_fields(layout),
        "recompute_modules": layout.recompute_modules or None,
        **_offload_fields(layout),
    }


def _pipeline_fields(layout: Layout) -> dict[str, Any]:
    way = read_pipeline_layout(layout.pipeline_layout or EVEN)
    if way.form == LISTED:
        return {"pipeline_model_parallel_layout": layout.pipeline_layout}
    chunks = {"virtual_pipeline_model_parallel_size": layout.virtual_pipeline if layout.virtual_pipeline > 1 else None}
    if way.form == ENDS:
        ends = {"num_layers_in_first_pipeline_stage": way.first, "num_layers_in_last_pipeline_stage": way.last}
        return {**chunks, **ends}
    of_embedding, of_loss = ACCOUNTED.get(way.form, (0, 0))
    return {
        **chunks,
        "account_for_embedding_in_pipeline_split": True if of_embedding else None,
        "account_for_loss_in_pipeline_split": True if of_loss else None,
    }


def _context_fields(layout: Layout) -> dict[str, Any]:
    told = context_options(layout)
    sizes = told.get("context_sizes")
    return {
        "cp_comm_type": told.get("context_exchange"),
        "hierarchical_context_parallel_sizes": None if sizes is None else tuple(map(int, sizes)),
    }


def _offload_fields(layout: Layout) -> dict[str, Any]:
    """Return what sends activations to the host: parts of all layers, or the first layers whole."""
    if not layout.activation_offload:
        return {}
    if layout.offload_layers is not None:
        return {"cpu_offloading": True, "cpu_offloading_num_layers": layout.offload_layers}
    return {"fine_grained_activation_offloading": True, "offload_modules": layout.offload_modules}


def _holds_fp8_alone(launch: TrainingLaunch) -> bool:
    asked = launch.question.fp8_primary_weights
    return launch.question.precision == "fp8-mixed" and (asked is None or asked)


def _recipe(launch: TrainingLaunch) -> str:
    if launch.question.precision != "fp8-mixed":
        return RECIPES[launch.question.precision]
    is_delayed = launch.layout.offload != "none" and _holds_fp8_alone(launch)
    return DELAYED_SCALES if is_delayed else PRESENT_SCALES


def _precision_fields(launch: TrainingLaunch) -> dict[str, Any]:
    is_fp8 = launch.question.precision == "fp8-mixed"
    return {
        "grad_reduce_in_fp32": launch.question.gradient_dtype == "fp32",
        "first_last_layers_bf16": False if is_fp8 else None,
        "fp8_param_gather": _holds_fp8_alone(launch) if is_fp8 else None,
    }


def _optimizer_fields(launch: TrainingLaunch) -> dict[str, Any]:
    """Return where the states are and in which dtypes.

    Other dtypes, and the host, need the precision-aware optimizer.
    """
    question, is_on_host = launch.question, launch.layout.offload != "none"
    states = question.optimizer_state_dtype
    is_aware = _is_precision_aware(launch)
    return {
        "use_distributed_optimizer": launch.layout.zero_stage > 0,
        "use_precision_aware_optimizer": True if is_aware else None,
        "main_grads_dtype": _dtype(question.gradient_dtype or "bf16") if is_aware else None,
        "exp_avg_dtype": _dtype(states) if is_aware else None,
        "exp_avg_sq_dtype": _dtype(states) if is_aware else None,
        "optimizer_cpu_offload": True if is_on_host else None,
        "optimizer_offload_fraction": 1.0 if is_on_host else None,
    }


def _is_precision_aware(launch: TrainingLaunch) -> bool:
    return launch.layout.offload != "none" or launch.question.optimizer_state_dtype not in (None, "fp32")


def _train_fields(launch: TrainingLaunch) -> dict[str, Any]:
    return {
        "train_iters": launch.steps,
        "micro_batch_size": launch.layout.micro_batch_size,
        "global_batch_size": launch.question.global_batch_size,
    }


def _replica_fields(launch: TrainingLaunch) -> dict[str, Any]:
    layout = launch.layout
    is_divided = layout.zero_stage > 0
    copies = layout.data_parallel // layout.shard_group if is_divided and launch.is_hybrid else None
    return {
        "use_distributed_optimizer": is_divided,
        "num_distributed_optimizer_instances": copies,
        "grad_reduce_in_fp32": launch.question.gradient_dtype == "fp32",
        "overlap_grad_reduce": _hides_gradients(launch),
        "overlap_param_gather": _hides_parameters(launch),
        "average_in_collective": True,
    }


def _hides_gradients(launch: TrainingLaunch) -> bool:
    hidden, layout = launch.layout.overlap, launch.layout
    return hidden.gradients if hidden else layout.data_parallel * layout.context_parallel > 1


def _hides_parameters(launch: TrainingLaunch) -> bool:
    hidden, is_divided = launch.layout.overlap, launch.layout.zero_stage > 0
    return hidden.parameters and is_divided if hidden else is_divided and _hides_gradients(launch)


def _overlap_fields(launch: TrainingLaunch) -> dict[str, Any]:
    hidden = launch.layout.overlap
    return {
        "tp_comm_overlap": bool(hidden and hidden.tensor_parallel),
        "overlap_grad_reduce": _hides_gradients(launch),
        "overlap_param_gather": _hides_parameters(launch),
        "overlap_moe_expert_parallel_comm": True if hidden and hidden.expert_parallel else None,
    }


def _data_fields(launch: TrainingLaunch) -> dict[str, Any]:
    return {
        "seq_length": launch.question.sequence_length,
        "random_seed": 1234,
        "reset_position_ids": False,
        "reset_attention_mask": False,
        "eod_mask_loss": False,
        "blend": Code("([prefix], None) if prefix else None"),
        "split": "9999,8,2",
        "dataloader_type": "single",
    }


def _script(launch: TrainingLaunch) -> Sequence[str]:
    return OWN_SCRIPT if why_not(launch) else (FILE,)


def _environment(launch: TrainingLaunch) -> Sequence[str]:
    """Return what Megatron-Core insists on: kernels and messages keep their order."""
    layout = launch.layout
    if layout.overlap is not None and layout.overlap.expert_parallel:
        return ("CUDA_DEVICE_MAX_CONNECTIONS=32",)
    return ("CUDA_DEVICE_MAX_CONNECTIONS=1",) if layout.tensor_parallel > 1 or layout.context_parallel > 1 else ()


MEGATRON_BRIDGE = Target(
    name="megatron-bridge", why_not=why_not, write=bridge_script, saved_as=FILE, names_recomputed_modules=True
)
SCRIPT = Script(words=_script, environment=_environment, derives_replicas=lambda _launch: True)
