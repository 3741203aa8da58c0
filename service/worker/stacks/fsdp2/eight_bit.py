"""Matrix products in fp8 as torchtitan has them: torchao's own `Float8Linear`, on fake tensors or real ones.

Every product keeps its inputs in 16 bits and casts them anew in the backward pass (torchao 0.18,
float8/float8_linear.py, `matmul_with_hp_or_float8_args`). Which matrices: all of the model whose lengths are whole
multiples of 16 (torchtitan 0.2, components/quantization/utils.py, `module_filter_fn`), each tensor with one scale,
worked out as it is cast, gathered in 16 bits (config/job_config.py, `Float8Linear`, its defaults).
"""

from __future__ import annotations

from typing import Any

from torch import nn

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.stacks.fsdp2.rules import MULTIPLE
from plimsoll.service.worker.training.parallel.tensor_parallel import LayerStyles


def cast_products(model: Any) -> None:
    """Give the model's matrices products in fp8; raises `NotYetAvailable` for a worker without torchao."""
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ModuleNotFoundError as error:
        raise NotYetAvailable(
            "Products in fp8 are torchao's own code, which this worker does not have: install plimsoll[fp8] there.",
            pointer="/training/precision",
        ) from error
    convert_to_float8_training(model, config=Float8LinearConfig(), module_filter_fn=_has_whole_multiples)


def styles_in_fp8() -> LayerStyles:
    """Return how layers with products in fp8 are split, whose inputs are cast before they are gathered.

    Source: torchtitan, models/llama3/infra/parallelize.py, `apply_tp`.
    """
    from torchao.float8.float8_tensor_parallel import (
        Float8ColwiseParallel,
        Float8RowwiseParallel,
        PrepareFloat8ModuleInput,
    )

    return LayerStyles(column=Float8ColwiseParallel, row=Float8RowwiseParallel, module_input=PrepareFloat8ModuleInput)


def _has_whole_multiples(module: nn.Module, _name: str) -> bool:
    return isinstance(module, nn.Linear) and all(length % MULTIPLE == 0 for length in module.weight.shape)
