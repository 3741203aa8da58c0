"""Level `count`: the planner's weights against the real module's, name by name."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.families import describe_config
from plimsoll.service.worker.proofs.verdict import CONFIRMED, REFUTED
from plimsoll.service.worker.tasks import Report
from plimsoll.service.worker.training.building import causal_model

COUNTED_DTYPE = torch.bfloat16  # what checkpoints are published in
MOST_DIFFERENCES = 100

Shape = tuple[int, ...]


def count_weights(request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Return how the planner's weights and transformers' parameters compare.

    Raises `InvalidModelConfig` for a config transformers cannot build.
    """
    started = time.monotonic()
    config, name = request["model"]["config"], request["model"]["name"]
    report(0, 2, "stage", "building")
    spec = describe_config(config, name=name)
    with torch.device("meta"):
        model = causal_model(config, dtype=COUNTED_DTYPE)
    report(1, 2, "stage", "comparing")
    # Parameters that are tied come once, under their first name.
    built = {key: tuple(parameter.shape) for key, parameter in model.named_parameters()}
    differences = weight_differences(planned_shapes(spec), built)
    result = _result(spec, model, differences)
    result["seconds"] = time.monotonic() - started
    report(2, 2, "stage", "done")
    return result


def planned_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Return the planner's tensors by name."""
    return {name: weight.shape for name, weight in spec.named_weights()}


def weight_differences(planned: Mapping[str, Shape], built: Mapping[str, Shape]) -> list[dict[str, Any]]:
    """Return every tensor that only one side has, or that has two shapes; None stands for absent."""
    return [
        {"name": name, "planned_shape": _listed(planned.get(name)), "built_shape": _listed(built.get(name))}
        for name in sorted(planned.keys() | built.keys())
        if planned.get(name) != built.get(name)
    ]


def _result(spec: ModelSpec, model: torch.nn.Module, differences: list[dict[str, Any]]) -> dict[str, Any]:
    import transformers

    planned_elements = spec.parameters
    built_elements = sum(parameter.numel() for parameter in model.parameters())
    element_bytes = COUNTED_DTYPE.itemsize
    return {
        "level": "count",
        "rank": None,
        "predicted": _side(planned_elements, element_bytes),
        "measured": {**_side(built_elements, element_bytes), "reserved_bytes": None},
        "relative_error": planned_elements / built_elements - 1,
        "device": "meta",
        "traced_with": f"transformers {transformers.__version__} {type(model).__name__}",
        "verdict": REFUTED if differences else CONFIRMED,
        "tensors": sum(1 for _ in model.parameters()),
        "differences": differences[:MOST_DIFFERENCES],
        "differences_total": len(differences),
        "notes": ["peak_bytes is the whole model's weights in bf16; tied weights count once."],
    }


def _side(elements: int, element_bytes: int) -> dict[str, Any]:
    weight_bytes = elements * element_bytes
    return {"peak_bytes": weight_bytes, "items": {"parameters": weight_bytes}, "parameters": elements}


def _listed(shape: Shape | None) -> list[int] | None:
    return None if shape is None else list(shape)
