"""Adapters and four-bit weights: `peft.LoraConfig` and `transformers.BitsAndBytesConfig` as JSON.

`adapter_config.json` is how peft stores a LoraConfig; transformers reads the
other from the `quantization_config` of a model's config, or by its `from_dict`.
"""

from __future__ import annotations

from typing import Any

from plimsoll.service.launch.training import Target, TrainingLaunch

# bitsandbytes keeps the packed numbers in a tensor of this dtype. FSDP flattens and gathers only tensors of one
# dtype, which its guide therefore makes that of the computation
# (https://huggingface.co/docs/bitsandbytes/main/en/fsdp_qlora).
COMPUTE_DTYPES = {"bf16-mixed": "bfloat16", "bf16": "bfloat16", "fp16-mixed": "float16"}
PACKED_DTYPE = "uint8"


def _adapts(launch: TrainingLaunch) -> bool:
    return launch.question.method != "full"


def _packs(launch: TrainingLaunch) -> bool:
    return launch.question.method == "qlora"


def lora_config(launch: TrainingLaunch) -> dict[str, Any]:
    """Return peft's LoraConfig; its scale, `lora_alpha`, is peft's own default."""
    lora = launch.question.lora
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": launch.model_path,
        "r": lora.rank,
        "target_modules": lora.ALL_LINEAR if lora.targets_all_linear else list(lora.target_modules),
        **({"modules_to_save": list(lora.modules_to_save)} if lora.modules_to_save else {}),
        **({} if lora.dropout is None else {"lora_dropout": lora.dropout}),
        "bias": "none",
    }


def bitsandbytes_config(launch: TrainingLaunch) -> dict[str, Any]:
    """Return the four-bit NormalFloat config of Dettmers et al. 2023 (arXiv:2305.14314)."""
    compute = COMPUTE_DTYPES.get(launch.question.precision, "float32")
    return {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": launch.question.lora.double_quantization,
        "bnb_4bit_compute_dtype": compute,
        "bnb_4bit_quant_storage": compute if launch.layout.zero_stage > 0 else PACKED_DTYPE,
    }


# peft looks for this name in an adapter's folder.
PEFT = Target(name="peft", is_for=_adapts, write=lora_config, saved_as="adapter_config.json")
BITSANDBYTES = Target(name="bitsandbytes", is_for=_packs, write=bitsandbytes_config)
