"""torchtune's command: one of the recipes and configs it ships, with what the plan changes.

Recipes and configs: torchtune 0.6.1, `_recipe_registry.py`; keys, as the recipes
read them: `recipes/full_finetune_distributed.py` and `lora_finetune_distributed.py`.
Model and tokenizer stay where the config says that `tune download` puts them.
"""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.service.launch.training import (
    Target,
    TrainingLaunch,
    chosen_dtypes,
    given_reasons,
    uneven_nodes,
)
from plimsoll.service.stacks.torchtune.models import adapter_arguments, names_adapters

# Configs of whole recipes, by the names of the models that they are for.
FULL_CONFIGS: Mapping[str, str] = {
    "meta-llama/Llama-2-7b-hf": "llama2/7B_full",
    "meta-llama/Llama-2-13b-hf": "llama2/13B_full",
    "meta-llama/Meta-Llama-3-8B": "llama3/8B_full",
    "meta-llama/Meta-Llama-3-70B": "llama3/70B_full",
    "meta-llama/Llama-3.1-8B": "llama3_1/8B_full",
    "meta-llama/Llama-3.1-8B-Instruct": "llama3_1/8B_full",
    "meta-llama/Llama-3.1-70B": "llama3_1/70B_full",
    "meta-llama/Llama-3.1-70B-Instruct": "llama3_1/70B_full",
    "Qwen/Qwen2.5-0.5B": "qwen2_5/0.5B_full",
    "Qwen/Qwen2.5-0.5B-Instruct": "qwen2_5/0.5B_full",
    "Qwen/Qwen2.5-1.5B": "qwen2_5/1.5B_full",
    "Qwen/Qwen2.5-1.5B-Instruct": "qwen2_5/1.5B_full",
    "Qwen/Qwen2.5-3B": "qwen2_5/3B_full",
    "Qwen/Qwen2.5-3B-Instruct": "qwen2_5/3B_full",
    "Qwen/Qwen2.5-7B": "qwen2_5/7B_full",
    "Qwen/Qwen2.5-7B-Instruct": "qwen2_5/7B_full",
}
# Only Llama 3's configs come with a plan of what tensor parallelism divides.
TENSOR_PARALLEL_PLAN = "torchtune.models.llama3.base_llama_tp_plan"
RECIPES: Mapping[str, str] = {"full": "full_finetune_distributed", "lora": "lora_finetune_distributed"}
# A recipe computes in the dtype of its weights: it has no mixed precision.
DTYPES: Mapping[str, str] = {"bf16": "bf16", "fp32": "fp32"}


def _why_not(launch: TrainingLaunch) -> tuple[str, ...]:
    question, layout = launch.question, launch.layout
    return given_reasons(
        *chosen_dtypes(question, "torchtune"),
        (launch.model_name not in FULL_CONFIGS, "torchtune ships no config of this model for several GPUs."),
        (
            launch.is_of_older_version,
            f"The file is for torchtune 0.6, and the plan for {layout.framework_version}.",
        ),
        (question.method not in RECIPES, "torchtune's four-bit recipe names its matrices by a config of its own."),
        (question.precision not in DTYPES, f"torchtune's recipes have no precision {question.precision}."),
        (question.optimizer != "adamw", f"torchtune's configs are written for AdamW, not for {question.optimizer}."),
        (layout.zero_stage == 0 and layout.data_parallel > 1, "torchtune's recipes always shard the model."),
        (launch.is_hybrid, "torchtune's recipes shard over all replicas."),
        (
            layout.context_parallel > 1,
            "The file is for torchtune 0.6, which has no option for context parallelism; its main branch has.",
        ),
        (
            layout.tensor_parallel > 1 and not FULL_CONFIGS.get(launch.model_name or "", "").startswith("llama3"),
            "torchtune has no plan of tensor parallelism for this model.",
        ),
        (
            question.method == "lora" and layout.tensor_parallel > 1,
            "torchtune's LoRA recipe has no option for tensor parallelism.",
        ),
        (
            question.method == "lora" and not names_adapters(question.lora),
            "torchtune has no option for adapters beside these matrices alone.",
        ),
        (bool(question.lora.modules_to_save), "torchtune trains no copies of whole modules beside adapters."),
        (
            question.method == "lora" and _every(launch) is not None,
            "torchtune's LoRA recipe recomputes all layers or none.",
        ),
        (
            layout.activation_offload and (layout.recompute == "none" or _every(launch) is not None),
            "torchtune's recipes move activations to the host only where all layers are recomputed.",
        ),
        uneven_nodes(launch),
    )


def _every(launch: TrainingLaunch) -> int | None:
    """Return which of so many layers is recomputed, where not all are."""
    wanted = launch.question.recompute
    return None if wanted is None or launch.layout.recompute == "none" else wanted.every


def torchtune_command(launch: TrainingLaunch) -> str:
    """Return the command; ranks, batch and accumulation multiply out to the plan's batch."""
    question, layout = launch.question, launch.layout
    config, every = FULL_CONFIGS[launch.model_name or ""], _every(launch)
    changes: dict[str, object] = {
        "tokenizer.max_seq_len": question.sequence_length,
        "batch_size": layout.micro_batch_size,
        "gradient_accumulation_steps": layout.gradient_accumulation_steps,
        "dtype": DTYPES[question.precision],
        "fsdp_reshard_after_forward": layout.zero_stage == 3,
        "enable_activation_checkpointing": layout.recompute != "none" and every is None,
        "enable_activation_offloading": layout.activation_offload,
        "compile": question.kernels == "compiled",
    }
    if layout.offload != "none":
        changes["fsdp_cpu_offload"] = True
    if every is not None:
        # The recipe heeds these where the option for all layers is off.
        changes |= {"ac_mode": "selective", "ac_option": every}
    if layout.tensor_parallel > 1:
        # The recipe refuses the fused optimizer beside tensor parallelism.
        changes |= {
            "tensor_parallel_dim": layout.tensor_parallel,
            "tensor_parallel_plan._component_": TENSOR_PARALLEL_PLAN,
            "optimizer.fused": False,
        }
    if question.method == "lora":
        config = config.replace("_full", "_lora")
        told = adapter_arguments(question.lora, in_four_bits=False)
        changes |= {
            "model.lora_rank": told["lora_rank"],
            "model.lora_attn_modules": f"[{','.join(told['lora_attn_modules'])}]",
            "model.apply_lora_to_mlp": told["apply_lora_to_mlp"],
        }
    nodes = "" if launch.nodes == 1 else f" --nnodes {launch.nodes} --rdzv_backend c10d --rdzv_endpoint $HEAD_NODE"
    words = " ".join(f"{name}={value}" for name, value in changes.items())
    recipe = RECIPES[question.method]
    return f"tune run{nodes} --nproc_per_node {launch.processes_per_node} {recipe} --config {config} {words}"


TORCHTUNE = Target(name="torchtune", why_not=_why_not, write=torchtune_command)
