"""DeepSpeed's JSON config: ZeRO and its offload, precision, batch.

Field names and defaults: DeepSpeed, `runtime/config.py`, `runtime/zero/config.py`,
`runtime/zero/offload_config.py`, `runtime/precision_config.py`. Buffer sizes are
those that the plan's memory is counted with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.planners.memory import nvme
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.service.launch.training import LEARNING_RATE, Target, TrainingLaunch, given_reasons

# What other programs are told the config is called.
FILE = "deepspeed.json"
# The folder of the drives; every node has its own.
NVME_FOLDER = "/nvme"
# `runtime/config.py`, DEEPSPEED_OPTIMIZERS, and what torch.optim has by that name.
OPTIMIZERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "adamw": ("AdamW", {}),
    "lion": ("Lion", {}),
    "muon": ("Muon", {}),
    "sgd": ("SGD", {"momentum": 0.0}),
    "sgd-momentum": ("SGD", {"momentum": 0.9}),
}
TESTED_UNDER_ZERO = frozenset({"adamw", "lion", "muon"})  # runtime/zero/utils.py, ZERO_SUPPORTED_OPTIMIZERS
CPU_OPTIMIZERS = frozenset({"adamw", "lion"})  # ops/adam/cpu_adam.py, ops/lion/cpu_lion.py
DTYPES = frozenset({"fp32", "bf16", "fp16"})  # `runtime/config.py`, data_types.grad_accum_dtype
MODEL_DTYPES: Mapping[str, str] = {"bf16-mixed": "bf16", "fp16-mixed": "fp16"}
# loss_scale 0 asks for a dynamic one, from 2^16, doubled after 1,000 good steps: precision_config.py's own defaults.
LOSS_SCALING = {"loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000, "hysteresis": 2}


def why_not(launch: TrainingLaunch) -> tuple[str, ...]:
    """Return what of a plan the config cannot say."""
    question, layout = launch.question, launch.layout
    offloads = layout.offload != "none"
    return given_reasons(
        (
            layout.expert_parallel > 1,
            "Expert parallelism is set in the model's own MoE layers, not in the JSON config.",
        ),
        (
            question.optimizer_state_dtype not in (None, "fp32"),
            f"DeepSpeed keeps optimizer states in fp32, not in {question.optimizer_state_dtype}.",
        ),
        (
            question.gradient_dtype is not None and question.gradient_dtype not in DTYPES,
            f"grad_accum_dtype cannot be {question.gradient_dtype}.",
        ),
        (
            not adds_up_gradients_in(question.gradient_dtype, layout.zero_stage, question.precision),
            f"Without ZeRO DeepSpeed adds gradients up in the model's own format, not in {question.gradient_dtype}.",
        ),
        (
            offloads and question.optimizer not in CPU_OPTIMIZERS,
            f"DeepSpeed has no optimizer {question.optimizer} that runs on the host's processors.",
        ),
        (
            layout.recompute_layers is not None,
            f"Recompute of {layout.recompute_layers} layers alone is set in the model, not in the JSON config.",
        ),
    )


def deepspeed_config(launch: TrainingLaunch, *, makes_optimizer: bool = True) -> dict[str, Any]:
    """Return the config; its three batch sizes multiply out to the plan's."""
    question, layout = launch.question, launch.layout
    config: dict[str, Any] = {
        "train_batch_size": question.global_batch_size,
        "train_micro_batch_size_per_gpu": layout.micro_batch_size,
        "gradient_accumulation_steps": layout.gradient_accumulation_steps,
        "zero_optimization": zero_section(
            layout.framework,
            layout.zero_stage,
            optimizer=question.optimizer,
            offload=layout.offload,
            offload_target=layout.offload_target,
            secondary_group=layout.secondary_shard_group,
        ),
        **precision_section(question.precision),
        "autotuning": {"enabled": False},
    }
    if makes_optimizer:
        config |= optimizer_section(question.optimizer)
    if layout.recompute == "full":
        # What deepspeed.checkpointing does once the model calls it; whether it does is the model's to say.
        config["activation_checkpointing"] = {
            "partition_activations": False,
            "cpu_checkpointing": layout.activation_offload,
            "contiguous_memory_optimization": False,
        }
    return config | gradient_section(question.gradient_dtype)


def gradient_section(gradient_dtype: str | None) -> dict[str, Any]:
    """Return the part of the config that names the format in which gradients are added up; none says the model's."""
    return {} if gradient_dtype is None else {"data_types": {"grad_accum_dtype": gradient_dtype}}


def adds_up_gradients_in(gradient_dtype: str | None, zero_stage: int, precision: str) -> bool:
    """Return whether DeepSpeed starts with gradients of a format: without ZeRO the model's own alone.

    Source: runtime/engine.py, `_do_optimizer_sanity_check`.
    """
    return zero_stage > 0 or gradient_dtype in (None, MODEL_DTYPES.get(precision, "fp32"))


def optimizer_section(name: str) -> dict[str, Any]:
    """Return the part of the config that names the optimizer; torch's own are not run under ZeRO unless allowed."""
    kind, parameters = OPTIMIZERS[name]
    section: dict[str, Any] = {"optimizer": {"type": kind, "params": {"lr": LEARNING_RATE, **parameters}}}
    return section | ({} if name in TESTED_UNDER_ZERO else {"zero_allow_untested_optimizer": True})


def precision_section(precision: str) -> dict[str, Any]:
    """Return the part of the config that names the parameters' format."""
    if precision == "fp16-mixed":
        return {"fp16": {"enabled": True, **LOSS_SCALING}}
    return {"bf16": {"enabled": precision == "bf16-mixed"}}


def zero_section(
    framework: str, zero_stage: int, *, optimizer: str, offload: str, offload_target: str, secondary_group: int = 1
) -> dict[str, Any]:
    """Return the part of the config that is about ZeRO and its offload; sizes of buckets are elements."""
    zero = load_profile(framework).zero
    # DeepSpeed's own default, said aloud (zero/config.py, `overlap_comm_valid`). Plans count nothing as hidden, so that
    # runs in stage 3 are no slower; in stages 1 and 2 a second bucket would come with it.
    section: dict[str, Any] = {"stage": zero_stage, "contiguous_gradients": True, "overlap_comm": zero_stage == 3}
    if zero is not None:
        section |= {
            "reduce_bucket_size": zero.reduce_bucket_elements,
            "allgather_bucket_size": zero.reduce_bucket_elements,
        }
    if zero is not None and zero_stage == 3:
        section |= {
            "stage3_prefetch_bucket_size": zero.prefetch_bucket_elements,
            "sub_group_size": nvme.SUB_GROUP_ELEMENTS,
        }
    if secondary_group > 1:
        section["zero_hpz_partition_size"] = secondary_group
    if zero_stage == 3 and optimizer == "muon":
        section["reduce_scatter"] = False  # stage3.py: Muon reads whole gradients, and is not made beside a scatter
    if offload != "none":
        section["offload_optimizer"] = {
            "device": offload_target,
            "pin_memory": True,
            **_on_drives(offload_target, {"buffer_count": nvme.OPTIMIZER_BUFFERS}),
        }
    if offload == "optimizer+parameters":
        section["offload_param"] = {
            "device": offload_target,
            "pin_memory": True,
            **_on_drives(
                offload_target,
                {
                    "buffer_count": nvme.PARAMETER_BUFFERS,
                    "buffer_size": nvme.PARAMETER_BUFFER_ELEMENTS,
                    "max_in_cpu": nvme.PARAMETERS_IN_HOST,
                },
            ),
        }
    return section


def _on_drives(target: str, buffers: Mapping[str, int]) -> dict[str, Any]:
    """Return where the drives are and the buffers to them; none lie between the GPU and its host."""
    return {"nvme_path": NVME_FOLDER, **buffers} if target == "nvme" else {}


DEEPSPEED = Target(name="deepspeed", why_not=why_not, write=deepspeed_config)
