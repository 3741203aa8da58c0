"""What a program adds up of all layouts and stages, as single stages of one layout have it.

Arrays of a list of layouts are [stage, layout], without the stage where it makes no difference, or of one number for
all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from plimsoll.planners.memory.steps.layers import Layers, Run, layers_of
from plimsoll.planners.memory.steps.on_rank import NO_BYTES

T = TypeVar("T")


def at_stage(quantities: T, row: int, index: int) -> T:
    """Return the quantities of one stage of one layout of a list: single numbers, and the layers that it has."""
    return _chosen(quantities, lambda values: values if values is NO_BYTES else _number(values, row, index))


def at_stages(quantities: T, rows: Sequence[int], index: int) -> T:
    """Return the quantities of stages of one layout of a list, which have as many layers: one number for each of them.

    What is the same for all stages is a single number.
    """

    def of_rows(values: npt.NDArray[Any]) -> Any:
        if values is NO_BYTES or values.ndim < 2 or values.shape[0] == 1:
            return values if values is NO_BYTES else np.asarray(_number(values, 0, index))
        return values[rows, index if values.shape[1] > 1 else 0]

    return _chosen(quantities, of_rows)


def alike(quantities: Any, stages: int, index: int) -> Iterator[list[int]]:
    """Yield the stages of one layout of a list in groups that have as many layers of each kind."""
    counts = list(_layer_counts(quantities))
    groups: dict[tuple[int, ...], list[int]] = {}
    for row in range(stages):
        groups.setdefault(tuple(_number(count, row, index) for count in counts), []).append(row)
    yield from groups.values()


def _chosen(quantities: T, chosen: Callable[[npt.NDArray[Any]], Any]) -> T:
    """Return quantities with what is `chosen` of each array; of layers, those that there are."""
    known: dict[int, Any] = {}

    def of(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return chosen(value)
        if isinstance(value, Layers):
            counted = [(run.unit, int(np.max(chosen(run.count)))) for run in value.stated]
            return layers_of([Run(unit=of(unit), count=np.array([count])) for unit, count in counted if count])
        if isinstance(value, tuple):
            made = [of(each) for each in value]
            return type(value)(*made) if hasattr(value, "_fields") else tuple(made)
        if is_dataclass(value) and not isinstance(value, type):
            if id(value) not in known:
                own = {each.name: of(getattr(value, each.name)) for each in fields(value)}
                known[id(value)] = replace(value, **own)
            return known[id(value)]
        return value

    made: T = of(quantities)
    return made


def _layer_counts(quantities: Any) -> Iterator[npt.NDArray[np.int64]]:
    """Yield how many layers there are of each run that any of the quantities are."""
    if isinstance(quantities, Layers):
        yield from (run.count for run in quantities.stated)
    elif isinstance(quantities, tuple):
        for each in quantities:
            yield from _layer_counts(each)
    elif is_dataclass(quantities):
        for entry in fields(quantities):
            yield from _layer_counts(getattr(quantities, entry.name))


def _number(values: npt.NDArray[Any], row: int, index: int) -> Any:
    if values.ndim > 1:
        number = values[row if values.shape[0] > 1 else 0, index if values.shape[1] > 1 else 0]
    else:
        number = values[index if values.size > 1 else 0] if values.ndim else values[()]
    return number.item()
