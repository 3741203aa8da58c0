"""Whether a checkpoint is of the model that its config describes: names, shapes and bytes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.planners.architecture import ModelSpec
from plimsoll.service.checkpoints.headers import Checkpoint
from plimsoll.service.checkpoints.stored_names import SortedNames, sorted_names

MOST_NAMES_LISTED = 20
MOST_NAMES_IN_A_SENTENCE = 3

# Bytes of one element by the `torch_dtype` of a config.
DTYPE_BYTES: Mapping[str, int] = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
FULL_PRECISION_BYTES = DTYPE_BYTES["float32"]
# What packed elements are stored in.
INTEGER_DTYPES = frozenset({"U8", "I8", "I32", "U32"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """How many, and the first of them."""

    count: int
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherShape:
    """A tensor whose shape is another one in the checkpoint than by the config."""

    name: str
    described: tuple[int, ...]
    stored: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherShapes:
    """How many, and the first of them."""

    count: int
    first: tuple[OtherShape, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReport:
    """A checkpoint beside the description of its `config.json`; `disagreements` says in sentences what is wrong.

    `missing` are described and not stored; `extra` are stored and explained by
    nothing. What is explained is only counted: matrices stored packed, tensors of
    their quantization (scales), tables that loaders compute anew, a tied head
    stored again, and layers for multi-token prediction. `stored_bytes` is null
    where files are absent, `described_bytes` where the config names no format or
    the checkpoint is quantized. Shapes are compared where a file is there.
    `prefix_of_stored` and `prefix_of_described` stand before all names of that
    side and were set aside. `not_in_files` and `not_in_index` are contradictions
    between the index and the files.
    """

    agrees: bool
    disagreements: tuple[str, ...]
    files: int
    absent_files: Names
    tensors: int
    described_tensors: int
    missing: Names
    extra: Names
    other_shapes: OtherShapes
    shapes_compared: int
    not_in_files: Names
    not_in_index: Names
    stored_bytes: int | None
    index_bytes: int | None
    described_bytes: int | None
    packed_matrices: int
    quantization_tensors: int
    computed_tensors: int
    tied_tensors: int
    multi_token_tensors: int
    prefix_of_stored: str
    prefix_of_described: str


def checkpoint_report(checkpoint: Checkpoint, spec: ModelSpec, config: Mapping[str, Any]) -> CheckpointReport:
    """Return how a checkpoint and the description of its config agree."""
    shapes = {name: weight.shape for name, weight in spec.named_weights()}
    found = sorted_names(checkpoint, spec, shapes.keys())
    missing = [name for name in shapes if name not in found.whole and name not in found.packed]
    comparable = [(stored, shapes[name]) for name, stored in found.whole.items() if stored in checkpoint.tensors]
    others, repacked = _other_shapes(checkpoint, comparable, is_quantized=bool(found.quantization))
    stored_bytes = None if checkpoint.absent_files else checkpoint.stored_bytes
    described_bytes = None if found.packed or found.quantization else _described_bytes(spec, config, found)
    disagreements = [*_about_tensors(missing, found.extra, others), *_about_the_index(checkpoint)]
    if not disagreements:
        # Where tensors differ, so does their sum.
        disagreements = [*_about_bytes(checkpoint.index_bytes, stored_bytes, described_bytes, spec)]
    return CheckpointReport(
        agrees=not disagreements,
        disagreements=tuple(disagreements),
        files=len(set(checkpoint.file_of.values())),
        absent_files=_names(checkpoint.absent_files),
        tensors=len(checkpoint.file_of),
        described_tensors=len(shapes),
        missing=_names(missing),
        extra=_names(found.extra),
        other_shapes=OtherShapes(count=len(others), first=tuple(others[:MOST_NAMES_LISTED])),
        shapes_compared=len(comparable) - repacked,
        not_in_files=_names(checkpoint.not_in_files),
        not_in_index=_names(checkpoint.not_in_index),
        stored_bytes=stored_bytes,
        index_bytes=checkpoint.index_bytes,
        described_bytes=described_bytes,
        packed_matrices=len(found.packed) + repacked,
        quantization_tensors=len(found.quantization),
        computed_tensors=len(found.computed),
        tied_tensors=len(found.tied_again),
        multi_token_tensors=len(found.multi_token),
        prefix_of_stored=found.prefix.stored,
        prefix_of_described=found.prefix.described,
    )


def _other_shapes(
    checkpoint: Checkpoint, comparable: Collection[tuple[str, tuple[int, ...]]], *, is_quantized: bool
) -> tuple[list[OtherShape], int]:
    """Return the shapes that differ, and how many more do so because the matrix is packed under its own name."""
    others, repacked = [], 0
    for name, described in comparable:
        tensor = checkpoint.tensors[name]
        if tensor.shape == described:
            continue
        # bitsandbytes and ModelOpt store several narrow elements in one integer.
        is_packed = tensor.dtype in INTEGER_DTYPES and math.prod(tensor.shape) < math.prod(described)
        if is_quantized and is_packed:
            repacked += 1
        else:
            others.append(OtherShape(name=name, described=described, stored=tensor.shape))
    return others, repacked


def _described_bytes(spec: ModelSpec, config: Mapping[str, Any], found: SortedNames) -> int | None:
    """Return the bytes of the described model in the config's format, a tied head as often as it is stored."""
    for part in (config, config.get("text_config")):
        for key in ("dtype", "torch_dtype"):
            value = part.get(key) if isinstance(part, Mapping) else None
            if isinstance(value, str) and value.removeprefix("torch.") in DTYPE_BYTES:
                again = len(found.tied_again) * spec.vocabulary_size * spec.hidden_size
                return DTYPE_BYTES[value.removeprefix("torch.")] * (spec.parameters + again)
    return None


def _about_tensors(missing: list[str], extra: list[str], others: list[OtherShape]) -> Iterator[str]:
    if missing:
        yield f"{_counted(missing, 'weight')} of the config's model not in the checkpoint: {_some(missing)}."
    if extra:
        yield f"{_counted(extra, 'tensor')} of the checkpoint not in the config's model: {_some(extra)}."
    if others:
        first = others[0]
        yield (
            f"{_counted(others, 'tensor')} of another shape: {first.name} is {list(first.stored)} in the checkpoint "
            f"and {list(first.described)} by the config."
        )


def _about_the_index(checkpoint: Checkpoint) -> Iterator[str]:
    if checkpoint.not_in_files:
        names = checkpoint.not_in_files
        yield f"{_counted(names, 'tensor')} of the index not in the file it names: {_some(names)}."
    if checkpoint.not_in_index:
        names = checkpoint.not_in_index
        yield f"{_counted(names, 'tensor')} of the files not in the index: {_some(names)}."


def _about_bytes(
    index_bytes: int | None, stored_bytes: int | None, described_bytes: int | None, spec: ModelSpec
) -> Iterator[str]:
    if index_bytes is None:
        return
    if stored_bytes is not None:
        if stored_bytes != index_bytes:
            yield f"The index claims {index_bytes:,} bytes and the files hold {stored_bytes:,}."
    elif described_bytes is not None and not _is_explained(index_bytes - described_bytes, spec):
        yield f"The index claims {index_bytes:,} bytes and the config's model has {described_bytes:,}."


def _is_explained(surplus_bytes: int, spec: ModelSpec) -> bool:
    """Return whether weights that are often kept in fp32 (norms, routers, recurrences) make up the difference."""
    often_wide = sum(weight.elements * block.repeats for block in spec.blocks for weight in block.weights
                     if not weight.is_linear)  # fmt: skip
    return 0 <= surplus_bytes <= (FULL_PRECISION_BYTES - 1) * often_wide


def _names(names: Collection[str]) -> Names:
    return Names(count=len(names), first=tuple(names)[:MOST_NAMES_LISTED])


def _counted(things: Collection[object], noun: str) -> str:
    return f"{len(things):,} {noun}{' is' if len(things) == 1 else 's are'}"


def _some(names: Collection[str]) -> str:
    listed = ", ".join(tuple(names)[:MOST_NAMES_IN_A_SENTENCE])
    more = len(names) - MOST_NAMES_IN_A_SENTENCE
    return f"{listed} and {more:,} more" if more > 0 else listed
