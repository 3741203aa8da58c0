"""Adapters beside matrices that tensor parallelism splits.

Beside a matrix split by columns the first factor is whole and the second split by columns as well; beside one split
by rows the first is split by rows, and the second, whole, works on the sum. Over a split sequence it is the sum of a
rank's own tokens.

Source: huggingface/peft, pull request 3079 (tuners/lora/layer.py, "LoRA and Transformers TP").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, distribute_module
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from plimsoll.service.worker.training.adapters import AdaptedLinear


class WholeLinear(ParallelStyle):
    """A linear layer that stands whole on every rank; its input lies over the ranks as `input_layout` says."""

    def __init__(self, *, input_layout: Placement, use_local_output: bool) -> None:
        super().__init__()
        self._input_layout, self._use_local_output = input_layout, use_local_output

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, input_fn=self._distributed, output_fn=self._returned)

    def _distributed(self, _module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> Any:
        hidden = inputs[0]
        if not isinstance(hidden, DTensor):
            hidden = DTensor.from_local(hidden, mesh, [self._input_layout], run_check=False)
        return (hidden, *inputs[1:])

    def _returned(self, _module: nn.Module, output: Any, _mesh: DeviceMesh) -> Any:
        return output.to_local() if self._use_local_output else output


def with_adapters(plan: Mapping[str, Any], layer: nn.Module, residual: Placement) -> dict[str, Any]:
    """Return a layer's plan with the styles of adapted matrices given to their parts.

    `residual` is how the residual stream lies over the ranks.
    """
    styles: dict[str, Any] = {}
    for name, style in plan.items():
        if not isinstance(layer.get_submodule(name), AdaptedLinear):
            styles[name] = style
            continue
        styles[f"{name}.base_layer"] = style
        if isinstance(style, RowwiseParallel):
            styles[f"{name}.lora_A"] = RowwiseParallel(output_layouts=residual)
            styles[f"{name}.lora_B"] = WholeLinear(input_layout=residual, use_local_output=True)
        else:
            styles[f"{name}.lora_A"] = WholeLinear(input_layout=Replicate(), use_local_output=False)
            styles[f"{name}.lora_B"] = ColwiseParallel()
    return styles
