"""A description's weights beside those of the module that transformers builds of its config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.planners.architecture import ModelSpec
from plimsoll.service.worker.proofs.count.conversion import Shape, loaded

# Lightning attention's decays follow from the layer's and the head's index; transformers keeps them as buffers.
DERIVED_BUFFERS = re.compile(r"\.(query_decay|key_decay|diagonal_decay|slope_rate)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The elements and tensors of a module, where they are not the description's, and what loading converts."""

    built_elements: int
    built_tensors: int
    buffer_elements: int
    converted: int
    differences: list[dict[str, Any]]


def compare(spec: ModelSpec, module: Any) -> Comparison:
    """Return how a description's weights, loaded as transformers loads a checkpoint, agree with a module's.

    Tied weights come once, under their first name; the buffers that a checkpoint
    holds, such as the balancing biases of routers, count as weights.
    """
    parameters = dict(module.named_parameters())
    saved = set(module.state_dict())
    buffers = {
        name: buffer for name, buffer in module.named_buffers() if name in saved and not DERIVED_BUFFERS.search(name)
    }
    built = {**parameters, **buffers}
    planned = loaded({name: weight.shape for name, weight in spec.named_weights()}, module)
    return Comparison(
        built_elements=sum(tensor.numel() for tensor in built.values()),
        built_tensors=len(built),
        buffer_elements=sum(buffer.numel() for buffer in buffers.values()),
        converted=planned.converted,
        differences=weight_differences(planned.shapes, {name: tuple(each.shape) for name, each in built.items()}),
    )


def weight_differences(planned: Mapping[str, Shape], built: Mapping[str, Shape]) -> list[dict[str, Any]]:
    """Return every tensor that only one side has, or that has two shapes; None stands for absent."""
    return [
        {"name": name, "planned_shape": _listed(planned.get(name)), "built_shape": _listed(built.get(name))}
        for name in sorted(planned.keys() | built.keys())
        if planned.get(name) != built.get(name)
    ]


def _listed(shape: Shape | None) -> list[int] | None:
    return None if shape is None else list(shape)
