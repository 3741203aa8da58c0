"""How Megatron-Bridge is told of adapters: `CanonicalLoRA`, whose matrices are those of the checkpoint, one by one.

Names: NVIDIA-NeMo/Megatron-Bridge, `peft/canonical_lora.py`; of latent attention, Megatron-Core,
`transformer/multi_latent_attention.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.planners.jobs.adapters import is_matrix, is_targeted, module_name
from plimsoll.service.launch.training import TrainingLaunch

TARGETS: Mapping[str, str] = {
    "q_proj": "linear_q",
    "k_proj": "linear_k",
    "v_proj": "linear_v",
    "o_proj": "linear_proj",
    "gate_proj": "linear_fc1_gate",
    "up_proj": "linear_fc1_up",
    "down_proj": "linear_fc2",
    "q_a_proj": "linear_q_down_proj",
    "q_b_proj": "linear_q_up_proj",
    "kv_a_proj_with_mqa": "linear_kv_down_proj",
    "kv_b_proj": "linear_kv_up_proj",
}


def adapted_modules(launch: TrainingLaunch) -> tuple[str, ...]:
    """Return the modules that adapters stand beside, as the checkpoint calls them."""
    model, lora = launch.question.model, launch.question.lora
    blocks = (model.embedding, *model.layers, model.head)
    weights = (weight for block in blocks for weight in block.weights if is_matrix(weight))
    return tuple(dict.fromkeys(module_name(weight) for weight in weights if is_targeted(weight, lora)))


def why_no_adapters(launch: TrainingLaunch) -> tuple[tuple[bool, str], ...]:
    """Return the reasons for which Bridge's adapters are not the plan's, each with whether it holds."""
    question = launch.question
    if question.method == "full":
        return ()
    unknown = [name for name in adapted_modules(launch) if name not in TARGETS]
    return (
        (bool(unknown), f"Megatron-Bridge's CanonicalLoRA is not told of {', '.join(unknown)}."),
        (bool(question.lora.modules_to_save), "Megatron-Bridge trains no copies of whole modules beside adapters."),
    )


def targets(launch: TrainingLaunch) -> tuple[str, ...]:
    """Return Bridge's names of the modules that adapters stand beside."""
    return tuple(TARGETS[name] for name in adapted_modules(launch))
