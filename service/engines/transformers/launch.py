"""Arguments of transformers' `AutoModelForCausalLM.from_pretrained`, as JSON.

Sources: transformers/modeling_utils.py and transformers/utils/quantization_config.py (BitsAndBytesConfig), which
takes its dtypes by name.
"""

from __future__ import annotations

from typing import Any

from plimsoll.planners.serving.answer import ServingPlan
from plimsoll.service.launch.checkpoint import Checkpoint
from plimsoll.service.launch.serving import NoOption, check_loadable, version_numbers
from plimsoll.service.launch.stretched_positions import config_changes

ROPE_PARAMETERS_SINCE = (5, 0)
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def from_pretrained_arguments(checkpoint: Checkpoint, plan: ServingPlan) -> dict[str, Any]:
    """Return the keyword arguments; raise `NoOption` where transformers cannot load or divide the model as planned.

    A pipeline is layers dealt out over the GPUs of one process; tensor parallelism
    is one process for each GPU, started by `torchrun`.
    """
    layout, settings = plan.layout, plan.settings
    others = (layout.attention_data_parallel, layout.expert_parallel, layout.decode_context_parallel)
    # The cache has the type of the activations, and so have weights that are not quantized.
    dtype = settings.weights if settings.weights in DTYPES else settings.kv_cache
    if max(others) > 1 or min(layout.tensor_parallel, layout.pipeline_parallel) > 1:
        raise NoOption("from_pretrained divides tensors or deals out layers, not both, and nothing else.")
    if dtype not in DTYPES:
        raise NoOption(f"transformers has no cache in {dtype}.")
    quantized = _quantization(checkpoint, settings.weights, DTYPES[dtype])
    is_new = version_numbers(settings.engine_version) >= ROPE_PARAMETERS_SINCE
    changes = config_changes(checkpoint, settings, names_parameters=is_new)
    trust = {"trust_remote_code": True} if checkpoint.needs_own_code else {}
    arguments = {"pretrained_model_name_or_path": checkpoint.name, **trust, "dtype": DTYPES[dtype], **changes}
    if layout.tensor_parallel > 1:
        return {**arguments, "tp_plan": "auto", **quantized}
    return {**arguments, "device_map": "auto" if layout.pipeline_parallel > 1 else "cuda:0", **quantized}


def _quantization(checkpoint: Checkpoint, weights: str, compute_dtype: str) -> dict[str, Any]:
    """Return the argument that quantizes while loading, nothing where none is needed."""
    check_loadable("transformers", checkpoint, weights, (*DTYPES, "int8", "nf4"))
    if checkpoint.is_stored_as(weights) or weights in DTYPES:
        return {}
    if weights == "int8":
        return {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}
    return {
        "quantization_config": {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_compute_dtype": compute_dtype,
        }
    }
