"""ATorch's strategy: the list of optimizations that `auto_accelerate(load_strategy=…)` applies in order.

Names and their configs: atorch 0.2.5, `auto/accelerate.py` (get_strategy) and
`auto/opt_lib/`: parallel_mode, fsdp, zero2, amp_native, half and checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.service.launch.training import Target, TrainingLaunch, chosen_dtypes, given_reasons

# The class of a family's layers (transformers 5.23, `_no_split_modules` of its model).
LAYER_CLASSES: Mapping[str, str] = {
    "gpt2": "GPT2Block",
    "llama": "LlamaDecoderLayer",
    "mistral": "MistralDecoderLayer",
    "mixtral": "MixtralDecoderLayer",
    "qwen2": "Qwen2DecoderLayer",
    "qwen3": "Qwen3DecoderLayer",
    "qwen3_moe": "Qwen3MoeDecoderLayer",
}
AMP_DTYPES: Mapping[str, str] = {"bf16-mixed": "bf16", "fp16-mixed": "fp16"}


def _why_not(launch: TrainingLaunch) -> tuple[str, ...]:
    question, model_type = launch.question, launch.question.model.model_type
    return given_reasons(
        *chosen_dtypes(question, "atorch"),
        (model_type not in LAYER_CLASSES, f"The class of a {model_type} model's layers is not known here."),
        (
            launch.is_hybrid and launch.layout.zero_stage == 2,
            "atorch's hybrid sharding lets go of gathered weights, as stage 3 does.",
        ),
        (question.precision == "tf32", "atorch has no optimization that turns tf32 on."),
    )


def atorch_strategy(launch: TrainingLaunch) -> dict[str, Any]:
    """Return the strategy, and the batch of one process, which the loader's arguments take."""
    layout, question = launch.layout, launch.question
    layers = [LAYER_CLASSES[question.model.model_type]]
    strategy: list[list[Any]] = [["parallel_mode", [_groups(launch), None]]]
    if layout.zero_stage > 0:
        strategy.append(["fsdp" if layout.zero_stage == 3 else "zero2", {"atorch_wrap_cls": layers}])
    if question.precision in AMP_DTYPES:
        strategy.append(["amp_native", {"dtype": AMP_DTYPES[question.precision]}])
    elif question.precision == "bf16":
        strategy.append(["half", "bf16"])
    if layout.recompute == "full":
        # One class by its name: a list, unlike a tuple, would be taken for one class.
        strategy.append(["checkpoint", layers[0]])
    return {
        "load_strategy": strategy,
        "batch_size": layout.micro_batch_size,
        "gradient_accumulation_steps": layout.gradient_accumulation_steps,
    }


def _groups(launch: TrainingLaunch) -> list[list[Any]]:
    """Return the process groups: under hybrid sharding `zero` within, and `data` over the groups."""
    layout = launch.layout
    if not launch.is_hybrid:
        return [["data", layout.data_parallel]]
    return [["zero", layout.shard_group], ["data", layout.data_parallel // layout.shard_group]]


ATORCH = Target(name="atorch", why_not=_why_not, write=atorch_strategy)
