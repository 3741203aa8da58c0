"""Megatron-LM as Accelerate launches it: its plugin knows part of the arguments, by names of its own."""

from __future__ import annotations

from typing import Any

from plimsoll.planners.jobs.pipeline_layouts import EVEN
from plimsoll.service.launch.training import TrainingLaunch, given_reasons
from plimsoll.service.stacks.accelerate.launch import accelerate_target, dtype_reasons, mixed_precision
from plimsoll.service.stacks.megatron.launch import MUON, recompute_options

# utils/dataclasses.py, MODEL_CONFIGS_TO_MEGATRON_PARSERS: those of them that are planned.
MODELS = frozenset({"gpt2", "llama"})


def _why_not(launch: TrainingLaunch) -> tuple[str, ...]:
    layout, model_type = launch.layout, launch.question.model.model_type
    return dtype_reasons(launch) + given_reasons(
        (layout.virtual_pipeline > 1, "accelerate's launcher has no option for virtual pipeline stages."),
        (layout.pipeline_layout not in (None, EVEN), "accelerate's launcher divides a pipeline's layers evenly alone."),
        (layout.recompute != "full", "accelerate's Megatron-LM plugin always recomputes whole layers."),
        (
            launch.question.multi_token_prediction > 0,
            "accelerate's Megatron-LM plugin has no option for multi-token prediction.",
        ),
        (layout.context_all_to_all > 1, "accelerate's Megatron-LM plugin has no option for exchanging heads."),
        (layout.offload != "none", "accelerate's Megatron-LM plugin has no option for states on the host."),
        (layout.activation_offload, "accelerate's Megatron-LM plugin has no option for activations on the host."),
        (launch.is_hybrid, "accelerate's Megatron-LM plugin has no option for copies of the distributed optimizer."),
        (launch.question.optimizer == MUON, "accelerate's Megatron-LM plugin knows Adam and SGD alone."),
        (model_type not in MODELS, f"accelerate describes no {model_type} model to Megatron-LM."),
    )


def _parts(launch: TrainingLaunch) -> dict[str, Any]:
    layout = launch.layout
    config: dict[str, Any] = {
        "megatron_lm_tp_degree": layout.tensor_parallel,
        "megatron_lm_pp_degree": layout.pipeline_parallel,
        "megatron_lm_num_micro_batches": layout.gradient_accumulation_steps,
        "megatron_lm_sequence_parallelism": layout.sequence_parallel,
        "megatron_lm_use_distributed_optimizer": layout.zero_stage > 0,
        "megatron_lm_context_parallel_size": layout.context_parallel,
        "megatron_lm_use_rotary_position_embeddings": launch.question.model.model_type != "gpt2",
        **{f"megatron_lm_{name.replace('-', '_')}": value for name, value in recompute_options(layout).items()},
    }
    return {"distributed_type": "MEGATRON_LM", **mixed_precision(launch), "megatron_lm_config": config}


ACCELERATE = accelerate_target(_parts, _why_not)
