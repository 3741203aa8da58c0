"""Of every wrapper, and of families with exceptions, bitsandbytes quantizes in transformers what its stack says."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
from torch import nn
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.base import get_keys_to_not_convert
from transformers.quantizers.quantizers_utils import should_convert_module

from plimsoll.planners.families import describe_config
from plimsoll.planners.quantization.stacks import quantized_stack
from tests.planners.families.test_exactness import VARIANTS, built_module

pytestmark = pytest.mark.slow

MODEL_TYPES = (
    "deepseek_v32", "gemma3", "glm_moe_dsa", "gpt2", "kimi_k25", "llama", "llama4", "llava", "llava_next",
    "minimax_m3_vl", "mistral3", "mllama", "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_vl", "qwen3_vl_moe", "step3p7",
    "t5",
)  # fmt: skip


def elements_converted_by_transformers(config: Mapping[str, Any]) -> int:
    """Return the elements of the matrices that `replace_with_bnb_linear` would convert: nn.Linear itself and Conv1D."""
    module = built_module(json.dumps(config))
    kept = [*get_keys_to_not_convert(module), *(module._keep_in_fp32_modules or ())]
    return sum(
        part.weight.numel()
        for name, part in module.named_modules()
        if should_convert_module(name, kept) and (isinstance(part, Conv1D) or type(part) is nn.Linear)
    )


@pytest.mark.parametrize(
    ("model_type", "fields"),
    [
        pytest.param(model_type, fields, id=f"{model_type}-{number}")
        for model_type in MODEL_TYPES
        for number, fields in enumerate(VARIANTS[model_type])
    ],
)
def test_the_stack_quantizes_as_many_elements_as_transformers(model_type: str, fields: Mapping[str, Any]) -> None:
    config = {"model_type": model_type, **fields}
    stack = quantized_stack("bitsandbytes-nf4")
    weights = (weight for _, weight in describe_config(config, name="small").named_weights())
    described = sum(math.prod(weight.shape) for weight in weights if stack.reason_to_leave(weight) is None)
    assert described == elements_converted_by_transformers(config)
