"""A checkpoint's tensors as transformers turns them into a module's on loading: renamed, stacked, joined, divided.

transformers 5 holds what older code had in other tensors: a mixture's experts are one
stacked tensor, towers have other prefixes. What turns a checkpoint's names into the
module's is a table of its own (`conversion_mapping`), applied here to shapes alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What loading makes of a checkpoint: shapes by the module's names, and how many tensors it changed."""

    shapes: Mapping[str, Shape]
    converted: int


def loaded(checkpoint: Mapping[str, Shape], module: Any) -> Loaded:
    """Return a checkpoint's shapes as `from_pretrained` would load them into a module.

    A tensor that is loaded into none keeps its name; so do those that cannot be
    converted together, as experts of several shapes.
    """
    shapes: dict[str, Shape] = {}
    converted = 0
    for target, conversion, sources in _conversions(checkpoint, module):
        if conversion is None:
            shapes[target] = checkpoint[sources[0]]
            converted += target != sources[0]
            continue
        try:
            tensors = conversion.convert(target, model=module, config=module.config)
        except (RuntimeError, ValueError, IndexError, AttributeError):
            shapes |= {source: checkpoint[source] for source in sources}
            continue
        shapes |= {name: _shape(tensor) for name, tensor in tensors.items()}
        converted += len(sources)
    return Loaded(shapes=shapes, converted=converted)


def _conversions(checkpoint: Mapping[str, Shape], module: Any) -> list[tuple[str, Any, list[str]]]:
    """Return, for each of a module's tensors, what is loaded into it and how; None for a tensor taken as it is.

    As `transformers.core_model_loading.convert_and_load_state_dict_in_model` does.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    transforms = get_model_conversion_mapping(module)
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    converters = [each for each in transforms if isinstance(each, WeightConverter)]
    by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    held, prefix = module.state_dict(), module.base_model_prefix
    found: dict[str, tuple[str, Any, list[str]]] = {}
    for source in sorted(checkpoint, key=dot_natural_key):
        target, pattern = rename_source_key(source, renamings, converters, prefix, held)
        if target not in held and source in held:
            target, pattern = source, None
        if target not in held or (pattern is None and target in found):
            found[source] = (source, None, [source])
            continue
        if pattern is None:
            found[target] = (target, None, [source])
            continue
        _, conversion, sources = found.setdefault(target, (target, deepcopy(by_pattern[pattern]), []))
        conversion.add_tensor(target, source, pattern, torch.empty(checkpoint[source], device="meta"))
        sources.append(source)
    return list(found.values())


def _shape(tensor: Any) -> Shape:
    """Return a converted tensor's shape; a conversion that changes nothing leaves it in a list."""
    return tuple((tensor[0] if isinstance(tensor, list) else tensor).shape)
