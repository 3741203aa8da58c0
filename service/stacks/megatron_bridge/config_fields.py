"""The fields of Megatron-Bridge's config container that a plan decides, and how they are written.

Names: NVIDIA-NeMo/Megatron-Bridge 0.3 and later, `training/config.py`, `training/mixed_precision.py`,
`training/comm_overlap.py`, `recipes/utils/optimizer_utils.py`; the model's are fields of Megatron-Core's
`TransformerConfig`. Its defaults are those of its performance recipes (`perf_recipes/_common.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.planners.formats.precision import (
    FP8_BLOCK_MIXED,
    FP8_MIXED,
    MXFP8_MIXED,
    NVFP4_MIXED,
    training_precision,
)
from plimsoll.planners.jobs.pipeline_layouts import ACCOUNTED, ENDS, EVEN, LISTED, read_pipeline_layout
from plimsoll.planners.plans import Layout
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.service.launch.training import Placeholder, TrainingLaunch
from plimsoll.service.stacks.megatron.context import context_options
from plimsoll.service.stacks.megatron.launch import recompute_fields
from plimsoll.service.stacks.megatron_bridge.adapters import targets

RECIPES: Mapping[str, str] = {
    "bf16-mixed": "bf16_mixed",
    "fp16-mixed": "fp16_mixed",
    FP8_MIXED: "bf16_with_fp8_current_scaling_mixed",
    MXFP8_MIXED: "bf16_with_mxfp8_mixed",
    FP8_BLOCK_MIXED: "bf16_with_fp8_subchannel_scaling_mixed",
    NVFP4_MIXED: "bf16_with_nvfp4_mixed",
}
# Tensors are scaled by their present values, as in the published fp8 runs; states on the host need the older scaling
# where weights lie in fp8 alone (Megatron-LM, training/arguments.py).
DELAYED_SCALES = "bf16_with_fp8_delayed_scaling_mixed"
TORCH_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "uint8"}


class Code(str):
    """A value that is written as it stands."""

    __slots__ = ()


def assigned(name: str, fields: Mapping[str, Any]) -> list[str]:
    """Return a line for each field that says something: an object of that name is given it."""
    return [f"{name}.{field} = {_code(value)}" for field, value in fields.items() if value is not None]


def call(name: str, fields: Mapping[str, Any]) -> str:
    """Return a class made of the fields that say something."""
    return f"{name}({', '.join(f'{field}={_code(value)}' for field, value in fields.items() if value is not None)})"


def _code(value: Any) -> str:
    if isinstance(value, Placeholder):
        return f'int(os.environ["{value.removeprefix("$")}"])'
    return str(value) if isinstance(value, Code) else repr(list(value) if isinstance(value, tuple) else value)


def _dtype(name: str | None) -> Code | None:
    return None if name is None else Code(f"torch.{TORCH_DTYPES[name]}")


def model_fields(launch: TrainingLaunch) -> dict[str, Any]:
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
        # training/comm_overlap.py: one excludes the other.
        "moe_shared_expert_overlap": False if layout.overlap and layout.overlap.expert_parallel else None,
        # A checkpoint's own layers for multi-token prediction would be trained as well.
        "mtp_num_layers": question.multi_token_prediction or Code("None"),
        "calculate_per_token_loss": True if _averages_tokens(launch) else None,
        # Transformer Engine chooses among its kernels; flash-attn's alone have no sinks and no wider keys.
        "attention_backend": None if question.attention == "flash" else Code("AttnBackend.unfused"),
        "cross_entropy_loss_fusion": True,
        "cross_entropy_fusion_impl": "te",
        **recompute_fields(layout),
        "recompute_modules": layout.recompute_modules or None,
        **_offload_fields(layout),
    }


def _pipeline_fields(layout: Layout) -> dict[str, Any]:
    way = read_pipeline_layout(layout.pipeline_layout or EVEN)
    # A list says it too, but training/comm_overlap.py asks before it is read.
    chunks = {"virtual_pipeline_model_parallel_size": layout.virtual_pipeline if layout.virtual_pipeline > 1 else None}
    if way.form == LISTED:
        return {**chunks, "pipeline_model_parallel_layout": layout.pipeline_layout}
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


def holds_weights_alone(launch: TrainingLaunch) -> bool:
    """Return whether weights that are multiplied in 8 or 4 bits lie so alone."""
    question = launch.question
    kept = load_profile(launch.layout.framework).low_precision.get(question.precision)
    if kept is None:
        return False
    return kept.alone[0] if question.low_precision_weights is None else question.low_precision_weights


def recipe(launch: TrainingLaunch) -> str:
    """Return the name of the precision's recipe."""
    is_delayed = launch.question.precision == FP8_MIXED and launch.layout.offload != "none"
    return DELAYED_SCALES if is_delayed and holds_weights_alone(launch) else RECIPES[launch.question.precision]


def precision_fields(launch: TrainingLaunch) -> dict[str, Any]:
    """Return what the plan has otherwise than the recipe."""
    precision, is_alone = training_precision(launch.question.precision), holds_weights_alone(launch)
    return {
        "grad_reduce_in_fp32": launch.question.gradient_dtype == "fp32",
        "first_last_layers_bf16": False if precision.is_low else None,
        "fp8_param_gather": is_alone if precision.compute_format == "fp8" else None,
        # Gradients' buffers are for weights in blocks of 32 alone.
        "reuse_grad_buf_for_mxfp8_param_ag": False if precision.name == MXFP8_MIXED and not is_alone else None,
    }


def optimizer_fields(launch: TrainingLaunch) -> dict[str, Any]:
    """Return where the states are and in which dtypes.

    Other dtypes, and the host, need the precision-aware optimizer.
    """
    question, is_on_host = launch.question, launch.layout.offload != "none"
    states = question.optimizer_state_dtype
    is_aware = is_precision_aware(launch)
    return {
        "use_distributed_optimizer": launch.layout.zero_stage > 0,
        "use_precision_aware_optimizer": True if is_aware else None,
        "main_grads_dtype": _dtype(question.gradient_dtype or "bf16") if is_aware else None,
        "exp_avg_dtype": _dtype(states) if is_aware else None,
        "exp_avg_sq_dtype": _dtype(states) if is_aware else None,
        "optimizer_cpu_offload": True if is_on_host else None,
        "optimizer_offload_fraction": 1.0 if is_on_host else None,
    }


def is_precision_aware(launch: TrainingLaunch) -> bool:
    """Return whether states lie on the host or in narrow dtypes."""
    return launch.layout.offload != "none" or launch.question.optimizer_state_dtype not in (None, "fp32")


def train_fields(launch: TrainingLaunch) -> dict[str, Any]:
    """Return steps and batches."""
    return {
        "train_iters": launch.steps,
        "micro_batch_size": launch.layout.micro_batch_size,
        "global_batch_size": launch.question.global_batch_size,
    }


def replica_fields(launch: TrainingLaunch) -> dict[str, Any]:
    """Return how replicas share states and reduce gradients."""
    layout = launch.layout
    is_divided = layout.zero_stage > 0
    copies = layout.data_parallel // layout.shard_group if is_divided and launch.is_hybrid else None
    return {
        "use_distributed_optimizer": is_divided,
        "num_distributed_optimizer_instances": copies,
        "grad_reduce_in_fp32": launch.question.gradient_dtype == "fp32",
        "overlap_grad_reduce": _hides_gradients(launch),
        "overlap_param_gather": _hides_parameters(launch),
        "average_in_collective": not _averages_tokens(launch),
    }


def _averages_tokens(launch: TrainingLaunch) -> bool:
    """Return whether a loss is averaged over tokens: training/config.py asserts it of adapters over context ranks."""
    return launch.question.method != "full" and launch.layout.context_parallel > 1


def _hides_gradients(launch: TrainingLaunch) -> bool:
    hidden, layout = launch.layout.overlap, launch.layout
    return hidden.gradients if hidden else layout.data_parallel * layout.context_parallel > 1


def _hides_parameters(launch: TrainingLaunch) -> bool:
    hidden, is_divided = launch.layout.overlap, launch.layout.zero_stage > 0
    return hidden.parameters and is_divided if hidden else is_divided and _hides_gradients(launch)


def overlap_fields(launch: TrainingLaunch) -> dict[str, Any]:
    """Return which traffic hides behind computation."""
    hidden = launch.layout.overlap
    return {
        "tp_comm_overlap": bool(hidden and hidden.tensor_parallel),
        "overlap_grad_reduce": _hides_gradients(launch),
        "overlap_param_gather": _hides_parameters(launch),
        "overlap_moe_expert_parallel_comm": True if hidden and hidden.expert_parallel else None,
    }


def checkpoint_fields(launch: TrainingLaunch) -> dict[str, Any]:
    """Return where checkpoints lie."""
    read = 'os.environ.get("PRETRAINED")' if launch.question.method == "full" else 'os.environ["PRETRAINED"]'
    return {
        "save": "checkpoints",
        "load": "checkpoints",
        "pretrained_checkpoint": Code(read),
        "ckpt_format": "torch_dist",
    }


def adapter_fields(launch: TrainingLaunch) -> dict[str, Any]:
    """Return the adapters; alpha, which no plan decides, is twice the rank."""
    lora = launch.question.lora
    return {
        "target_modules": targets(launch),
        "dim": lora.rank,
        "alpha": 2 * lora.rank,
        "dropout": lora.dropout or 0.0,
    }


def data_fields(launch: TrainingLaunch) -> dict[str, Any]:
    """Return the data set, which the reader names."""
    if launch.question.method != "full":
        return {"dataset_root": Code('os.environ["DATASET_ROOT"]'), "seq_length": launch.question.sequence_length}
    return {
        "seq_length": launch.question.sequence_length,
        "random_seed": 1234,
        "reset_position_ids": False,
        "reset_attention_mask": False,
        "eod_mask_loss": False,
        "blend": Code('([os.environ["DATA_PREFIX"]], None) if "DATA_PREFIX" in os.environ else None'),
        "split": "9999,8,2",
        "dataloader_type": "single",
    }
