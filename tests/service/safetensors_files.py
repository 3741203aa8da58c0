"""Small safetensors files, right and wrong, written by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from plimsoll.planners.families import describe_config
from tests.api.questions import TINY_CONFIG

BF16_BYTES = 2


def written(path: Path, header: Any, *, data_bytes: int = 0, length: int | None = None) -> Path:
    """Write a header, true or not, with so many bytes of zeros after it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    claimed = len(text) if length is None else length
    path.write_bytes(claimed.to_bytes(8, "little") + text + bytes(data_bytes))
    return path


def entry(shape: Iterable[int], begin: int, end: int, dtype: str = "BF16") -> dict[str, Any]:
    """Return a header's entry."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def stored(path: Path, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str] | None = None) -> int:
    """Write a right file of these tensors, sparse, and return its data's bytes."""
    sizes = {"BF16": 2, "U8": 1, "F32": 4, "F8_E4M3": 1, "I32": 4}
    header, end = {}, 0
    for name, shape in shapes.items():
        dtype = (dtypes or {}).get(name, "BF16")
        begin, end = end, end + math.prod(shape) * sizes[dtype]
        header[name] = entry(shape, begin, end, dtype)
    written(path, header)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + end)
    return end


def tiny_shapes(**changes: Any) -> dict[str, tuple[int, ...]]:
    """Return the tensors of the tiny model by name."""
    spec = describe_config({**TINY_CONFIG, **changes}, name="tiny")
    return {name: weight.shape for name, weight in spec.named_weights()}


def indexed(folder: Path, shapes: Mapping[str, tuple[int, ...]], *, files: int = 2, **metadata: Any) -> dict[str, str]:
    """Write an index over so many files, and the files; return where each tensor is."""
    names = list(shapes)
    file_of = {name: f"model-{index % files + 1:05}-of-{files:05}.safetensors" for index, name in enumerate(names)}
    for file in set(file_of.values()):
        stored(folder / file, {name: shapes[name] for name in names if file_of[name] == file})
    write_index(folder, file_of, **metadata)
    return file_of


def write_index(folder: Path, file_of: Any, **metadata: Any) -> None:
    """Write an index alone."""
    content = {"metadata": metadata, "weight_map": file_of}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))


def write_config(folder: Path, **changes: Any) -> dict[str, Any]:
    """Write the tiny model's config and return it."""
    config = {**TINY_CONFIG, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return config
