"""How Megatron-LM is told which layers the stages of a pipeline have.

Source: Megatron-LM, training/arguments.py (validate_args, "Uneven virtual pipeline parallelism"); the letters of lists
are Megatron-Core's (core/transformer/pipeline_parallel_layer_layout.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.planners.jobs.pipeline_layouts import ACCOUNTED, ENDS, EVEN, LISTED, read_pipeline_layout
from plimsoll.service.launch.options import Value

BY_COUNTED = {counted: name for name, counted in ACCOUNTED.items()}


def division_fields(pipeline_layout: str | None) -> dict[str, Value]:
    """Return what says a way to divide a pipeline's blocks, by our names for Megatron-LM's arguments (`FLAGS`).

    Nothing says that all stages are alike.
    """
    way = read_pipeline_layout(pipeline_layout or EVEN)
    if way.form == LISTED:
        return {"listed_stages": pipeline_layout}
    if way.form == ENDS:
        return {"layers_of_first_stage": way.first, "layers_of_last_stage": way.last}
    if way.form in ACCOUNTED:
        of_embedding, of_loss = ACCOUNTED[way.form]
        return {"counts_embedding": of_embedding > 0, "counts_loss": of_loss > 0}
    return {}


def chunk_fields(pipeline_layout: str | None, virtual_pipeline: int, layers_of_chunk: int) -> dict[str, Value]:
    """Return what says how many virtual stages a rank has; a list of them says it by itself.

    Layers of each are the older way to say it, which stages of unlike numbers do not have.
    """
    division = division_fields(pipeline_layout)
    if virtual_pipeline == 1 or "listed_stages" in division:
        return {}
    return {"virtual_stages": virtual_pipeline} if division else {"virtual_stage_layers": layers_of_chunk}


def told_layout(values: Mapping[str, Any]) -> str:
    """Return a command's way to divide a pipeline's blocks as `layout.pipeline_layout` has it.

    `values` are its arguments by our names; raises `InvalidQuestion` for a list that is not planned.
    """
    if "listed_stages" in values:
        listed = str(values["listed_stages"])
        read_pipeline_layout(listed)
        return listed
    ends = (("first", values.get("layers_of_first_stage")), ("last", values.get("layers_of_last_stage")))
    if any(count is not None for _, count in ends):
        return ",".join(f"{end}={count}" for end, count in ends if count is not None)
    return BY_COUNTED.get(counted_blocks(values), EVEN)


def counted_blocks(values: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many layers embedding and head with loss count for."""
    return int(bool(values.get("counts_embedding"))), int(bool(values.get("counts_loss")))


def virtual_stages(values: Mapping[str, Any], pipeline_parallel: int) -> int:
    """Return how many virtual stages a rank has by a command's arguments, in any of the three forms."""
    if pipeline_parallel == 1:
        return 1
    if "listed_stages" in values:
        return max(len(listed_layers(values)) // pipeline_parallel, 1)
    if values.get("virtual_stages"):
        return int(values["virtual_stages"])
    of_each = int(values.get("virtual_stage_layers") or 0)
    blocks = int(values["layers"]) + sum(counted_blocks(values))
    return max(blocks // (pipeline_parallel * of_each), 1) if of_each else 1


def listed_layers(values: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the layers of each virtual stage that a command lists."""
    return read_pipeline_layout(str(values["listed_stages"])).layers
