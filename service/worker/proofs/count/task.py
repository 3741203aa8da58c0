"""Level `count`: build the real module without memory, and compare it with the plan's description."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.families import describe_config
from plimsoll.service.worker.proofs.count.comparison import Comparison, compare
from plimsoll.service.worker.proofs.count.module import COUNTED_DTYPE, whole_module
from plimsoll.service.worker.proofs.verdict import CONFIRMED, REFUTED
from plimsoll.service.worker.tasks import Report

MOST_DIFFERENCES = 100


def count_weights(request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Return how the planner's weights and transformers' compare.

    Raises `InvalidModelConfig` for a config transformers cannot build.
    """
    started = time.monotonic()
    config, name = request["model"]["config"], request["model"]["name"]
    report(0, 2, "stage", "building")
    spec = describe_config(config, name=name)
    module = whole_module(config)
    report(1, 2, "stage", "comparing")
    result = _result(spec, type(module).__name__, compare(spec, module))
    result["seconds"] = time.monotonic() - started
    report(2, 2, "stage", "done")
    return result


def _result(spec: ModelSpec, class_name: str, comparison: Comparison) -> dict[str, Any]:
    import transformers

    differences = comparison.differences
    return {
        "level": "count",
        "rank": None,
        "predicted": _side(spec.parameters),
        "measured": {**_side(comparison.built_elements), "reserved_bytes": None},
        "relative_error": spec.parameters / comparison.built_elements - 1,
        "device": "meta",
        "traced_with": f"transformers {transformers.__version__} {class_name}",
        "verdict": REFUTED if differences else CONFIRMED,
        "tensors": comparison.built_tensors,
        "differences": differences[:MOST_DIFFERENCES],
        "differences_total": len(differences),
        "notes": _notes(comparison),
    }


def _notes(comparison: Comparison) -> list[str]:
    notes = ["peak_bytes is the whole model's weights in bf16; tied weights count once."]
    if comparison.buffer_elements:
        notes.append(f"Buffers that the checkpoint holds are counted: {comparison.buffer_elements:,} elements.")
    if comparison.converted:
        notes.append(
            f"{comparison.converted:,} of the checkpoint's tensors have other names or are stacked in transformers' "
            "module; they were matched by the conversion that its own loader makes."
        )
    return notes


def _side(elements: int) -> dict[str, Any]:
    weight_bytes = elements * COUNTED_DTYPE.itemsize
    return {"peak_bytes": weight_bytes, "items": {"parameters": weight_bytes}, "parameters": elements}
