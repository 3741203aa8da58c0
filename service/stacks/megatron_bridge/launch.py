"""A Megatron-Bridge training script: the model by its checkpoint's config, and the plan in Bridge's config container.

Names: NVIDIA-NeMo/Megatron-Bridge 0.3 and later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll.planners.formats.precision import FP8_MIXED
from plimsoll.service.launch.script import OWN_SCRIPT, Script
from plimsoll.service.launch.training import LEARNING_RATE, Target, TrainingLaunch, given_reasons
from plimsoll.service.stacks.megatron.launch import GRADIENT_DTYPES, STATE_DTYPES, environment, scales_as_it_goes
from plimsoll.service.stacks.megatron_bridge.adapters import why_no_adapters
from plimsoll.service.stacks.megatron_bridge.config_fields import (
    RECIPES,
    adapter_fields,
    assigned,
    call,
    checkpoint_fields,
    data_fields,
    holds_weights_alone,
    is_precision_aware,
    model_fields,
    optimizer_fields,
    overlap_fields,
    precision_fields,
    recipe,
    replica_fields,
    train_fields,
)

FILE = "megatron_bridge_train.py"
# models/*/: families that `AutoBridge` turns into a Megatron-Core model of text.
FAMILIES = frozenset({
    "deepseek_v2", "deepseek_v3", "gemma", "gemma2", "gemma3_text", "glm4_moe", "gpt_oss", "llama",
    "mistral", "nemotron", "nemotron_h", "olmoe", "qwen2", "qwen3", "qwen3_moe", "qwen3_next",
})  # fmt: skip
HEADER = '''"""{purpose}"""

import os

import torch
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.utils.optimizer_utils import distributed_fused_adam_with_cosine_annealing
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.config import (
    CheckpointConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    {dataset},
    LoggerConfig,
    TokenizerConfig,
    TrainingConfig,
)
{imported}
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import get_mixed_precision_config
from megatron.core.transformer.enums import AttnBackend
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What differs between training a model and training adapters of it: imports, the data, and what is called."""

    purpose: str
    dataset: str
    imported: str
    called: str


PRETRAINING = Way(
    purpose="""Trains {model} as it was planned; start it on every rank with torchrun.

DATA_PREFIX names a data set in Megatron's indexed format. Without it the data are made up. PRETRAINED names the folder
that AutoBridge.import_ckpt wrote of the model. Without it the weights begin at random.
""",
    dataset="GPTDatasetConfig",
    imported="from megatron.bridge.training.pretrain import pretrain",
    called="pretrain",
)
ADAPTING = Way(
    purpose="""Trains adapters of {model} as it was planned; start it on every rank with torchrun.

PRETRAINED is the folder that AutoBridge.import_ckpt wrote of the model, DATASET_ROOT one with
training.jsonl and validation.jsonl.
""",
    dataset="FinetuningDatasetConfig",
    imported="""from megatron.bridge.peft.canonical_lora import CanonicalLoRA
from megatron.bridge.training.finetune import finetune""",
    called="finetune",
)


def why_not(launch: TrainingLaunch) -> tuple[str, ...]:
    """Return what of a plan the script cannot say."""
    question, layout, family = launch.question, launch.layout, launch.model_config.get("model_type")
    is_delayed = layout.offload != "none" and holds_weights_alone(launch)
    return given_reasons(
        (family not in FAMILIES, f"Megatron-Bridge has no bridge from {family}."),
        (question.precision not in RECIPES, f"Megatron-Bridge has no {question.precision} recipe."),
        *why_no_adapters(launch),
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
            question.precision == "fp16-mixed" and is_precision_aware(launch),
            "Dtypes of states, and states on the host, are not written beside fp16.",
        ),
        (
            is_delayed and (question.precision != FP8_MIXED or scales_as_it_goes(launch)),
            "optimizer_cpu_offload and fp8_param_gather need delayed scaling of whole tensors.",
        ),
        (
            layout.recompute_layers is not None and layout.recompute_layers % layout.virtual_pipeline != 0,
            f"{layout.recompute_layers} recomputed layers do not divide over {layout.virtual_pipeline} virtual stages.",
        ),
    )


def bridge_script(launch: TrainingLaunch) -> str:
    """Return the script."""
    hub, is_whole = repr(launch.model_path), launch.question.method == "full"
    way = PRETRAINING if is_whole else ADAPTING
    purpose = way.purpose.format(model=launch.model_path)
    return "\n".join(
        [
            HEADER.format(purpose=purpose, dataset=way.dataset, imported=way.imported),
            f"model = AutoBridge.from_hf_pretrained({hub}).to_megatron_provider(load_weights=False)",
            *assigned("model", model_fields(launch)),
            "",
            f"precision = get_mixed_precision_config({recipe(launch)!r})",
            *assigned("precision", precision_fields(launch)),
            "",
            f"optimizer, scheduler = distributed_fused_adam_with_cosine_annealing(max_lr={LEARNING_RATE})",
            *assigned("optimizer", optimizer_fields(launch)),
            "",
            "config = ConfigContainer(",
            "    model=model,",
            f"    train={call('TrainingConfig', train_fields(launch))},",
            "    optimizer=optimizer,",
            "    scheduler=scheduler,",
            f"    ddp={call('DistributedDataParallelConfig', replica_fields(launch))},",
            f"    dataset={call(way.dataset, data_fields(launch))},",
            "    logger=LoggerConfig(),",
            f'    tokenizer=TokenizerConfig(tokenizer_type="HuggingFaceTokenizer", tokenizer_model={hub}),',
            f"    checkpoint={call('CheckpointConfig', checkpoint_fields(launch))},",
            *([] if is_whole else [f"    peft={call('CanonicalLoRA', adapter_fields(launch))},"]),
            f"    comm_overlap={call('CommOverlapConfig', overlap_fields(launch))},",
            "    mixed_precision=precision,",
            ")",
            "",
            'if __name__ == "__main__":',
            f"    {way.called}(config, forward_step)",
        ]
    )


def _script(launch: TrainingLaunch) -> Sequence[str]:
    return OWN_SCRIPT if why_not(launch) else (FILE,)


MEGATRON_BRIDGE = Target(
    name="megatron-bridge", why_not=why_not, write=bridge_script, saved_as=FILE, names_recomputed_modules=True
)
SCRIPT = Script(words=_script, environment=environment, derives_replicas=lambda _launch: True)
