"""What a safetensors checkpoint holds, read from its index and its headers alone.

A safetensors file is the length of its header (8 bytes, little-endian), the
header (JSON: each tensor's format, shape and place), and the data. A checkpoint
is `model.safetensors`, or several files that `model.safetensors.index.json`
lists. Nothing of the data is read, and nothing in these files is trusted: every
number is checked against the file's size and against the others first.

Source: https://github.com/huggingface/safetensors, README ("Format") and
safetensors/src/tensor.rs (formats, and what a reader must refuse).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plimsoll.service.ground.allowed_paths import allowed_path
from plimsoll.service.ground.errors import InvalidCheckpoint
from plimsoll.service.ground.untrusted_files import UnusableFile, opened, parsed_object, shown, whole_content

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
FILE_SUFFIX = ".safetensors"
METADATA_KEY = "__metadata__"

# Bits of one element by the name of its format (safetensors/src/tensor.rs, `Dtype::bitsize`).
ELEMENT_BITS: Mapping[str, int] = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}

LENGTH_BYTES = 8
# The reference reader takes 100 MB. The largest known header, a trillion
# parameters in one file, would take 30; no shard's takes one.
MOST_HEADER_BYTES = 32 * 2**20
MOST_HEADER_BYTES_IN_ALL = 64 * 2**20
# An index takes 16 MB for a trillion parameters with a scale beside each weight.
MOST_INDEX_BYTES = 64 * 2**20
MOST_FILES = 4_096
# A trillion parameters in 384 experts a layer, packed, with a scale and a shape each, are 210,000.
MOST_TENSORS = 500_000
MOST_NAME_CHARACTERS = 512
MOST_DIMS = 16
# What a 64-bit reader can address.
MOST_NUMBER = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor of a file; its bytes lie from `begin` to before `end`, counted from the file's beginning."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    begin: int
    end: int

    @property
    def stored_bytes(self) -> int:
        """Return how many bytes it takes in the file."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The tensors of a folder.

    `file_of` names every tensor's file: by the index, or as found. `tensors` are
    those whose file is there. `index_bytes` is the sum the index claims. The
    index and the files may contradict each other: `not_in_files` are names that
    the index places in a file without them, `not_in_index` the reverse.
    """

    folder: Path
    file_of: Mapping[str, str]
    tensors: Mapping[str, StoredTensor]
    absent_files: tuple[str, ...] = ()
    index_bytes: int | None = None
    not_in_files: tuple[str, ...] = ()
    not_in_index: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Return whether every file that should be there is."""
        return not self.absent_files

    @property
    def stored_bytes(self) -> int:
        """Return the bytes of all tensors whose file is there."""
        return sum(tensor.stored_bytes for tensor in self.tensors.values())


def read_checkpoint(folder: Path, roots: Sequence[Path], *, pointer: str) -> Checkpoint | None:
    """Return what the folder's checkpoint holds, or None where it has no safetensors.

    `folder` is resolved already; its files are looked up under `roots` again, for
    any of them may be a link. A single file is read before an index, as
    transformers does. Raises InvalidCheckpoint and PathNotAllowed at `pointer`.
    """
    try:
        if _exists(folder / SINGLE_FILE):
            tensors = read_header(_resolved(folder, SINGLE_FILE, roots, pointer), name=SINGLE_FILE)
            return Checkpoint(
                folder=folder,
                file_of=dict.fromkeys((tensor.name for tensor in tensors), SINGLE_FILE),
                tensors={tensor.name: tensor for tensor in tensors},
            )
        if _exists(folder / INDEX_FILE):
            return _sharded(folder, roots, pointer)
    except UnusableFile as error:
        raise InvalidCheckpoint(error.detail, pointer=pointer) from error
    return None


def read_header(path: Path, *, name: str) -> tuple[StoredTensor, ...]:
    """Return the tensors of one safetensors file in the order of their data; raises UnusableFile.

    `path` is resolved already; `name` is what the file is called in errors and in the result.
    """
    with opened(path) as (file, file_bytes):
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if file_bytes < LENGTH_BYTES or length > file_bytes - LENGTH_BYTES:
            raise UnusableFile(f"{shown(name)} claims a header of {length} bytes and is {file_bytes} bytes long.")
        if length > MOST_HEADER_BYTES:
            raise UnusableFile(f"{shown(name)} has a header of {length} bytes; at most {MOST_HEADER_BYTES} are read.")
        content = file.read(length)
    if len(content) < length or not content.startswith(b"{"):
        raise UnusableFile(f"{shown(name)} does not begin with a safetensors header.")
    header = parsed_object(content, name=f"the header of {name}")
    _check_metadata(header.pop(METADATA_KEY, None), name)
    if len(header) > MOST_TENSORS:
        raise UnusableFile(f"{shown(name)} names {len(header)} tensors; at most {MOST_TENSORS} are read.")
    data_begins = LENGTH_BYTES + length
    tensors = sorted(
        (_tensor(key, entry, file=name, data_begins=data_begins) for key, entry in header.items()),
        key=lambda tensor: (tensor.begin, tensor.end),
    )
    _check_places(tensors, data_begins, file_bytes, name)
    return tuple(tensors)


def checkpoint_state(folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    """Return what changes when a file of the folder does: names, sizes, times and inodes of its safetensors."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if FILE_SUFFIX in entry.name)
    except OSError:
        return ()
    return tuple(_file_state(folder / name) for name in names[: MOST_FILES + 2])


def _file_state(path: Path) -> tuple[str, int, int, int]:
    try:
        status = path.stat()
    except OSError:
        return path.name, -1, -1, -1
    return path.name, status.st_size, status.st_mtime_ns, status.st_ino


def _sharded(folder: Path, roots: Sequence[Path], pointer: str) -> Checkpoint:
    index = parsed_object(
        whole_content(_resolved(folder, INDEX_FILE, roots, pointer), most_bytes=MOST_INDEX_BYTES), name=INDEX_FILE
    )
    file_of = _weight_map(index.get("weight_map"))
    found: dict[tuple[str, str], StoredTensor] = {}
    absent = []
    header_bytes = 0
    for name in sorted(set(file_of.values())):
        if not _exists(folder / name):
            absent.append(name)
            continue
        tensors = read_header(_resolved(folder, name, roots, pointer), name=name)
        header_bytes += min((tensor.begin for tensor in tensors), default=0)
        if header_bytes > MOST_HEADER_BYTES_IN_ALL:
            raise UnusableFile(f"The headers are larger than {MOST_HEADER_BYTES_IN_ALL} bytes in all.")
        found.update({(tensor.name, name): tensor for tensor in tensors})
        if len(found) > MOST_TENSORS:
            raise UnusableFile(f"The files hold more than {MOST_TENSORS} tensors in all.")
    listed = set(file_of.items())
    there = set(file_of.values()) - set(absent)
    return Checkpoint(
        folder=folder,
        file_of=file_of,
        tensors={name: tensor for (name, file), tensor in found.items() if file_of.get(name) == file},
        absent_files=tuple(absent),
        index_bytes=_total_bytes(index.get("metadata")),
        not_in_files=tuple(name for name, file in file_of.items() if file in there and (name, file) not in found),
        not_in_index=tuple(name for name, file in found if (name, file) not in listed),
    )


def _weight_map(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(file, str) for file in value.values()):
        raise UnusableFile(f"{shown(INDEX_FILE)} has no 'weight_map' from names to files.")
    if len(value) > MOST_TENSORS:
        raise UnusableFile(f"{shown(INDEX_FILE)} names {len(value)} tensors; at most {MOST_TENSORS} are read.")
    files = set(value.values())
    if len(files) > MOST_FILES:
        raise UnusableFile(f"{shown(INDEX_FILE)} names {len(files)} files; at most {MOST_FILES} are read.")
    for file in files:
        is_plain = Path(file).name == file and "\\" not in file and file.isprintable()
        if not (is_plain and file.endswith(FILE_SUFFIX)):
            raise UnusableFile(f"{shown(INDEX_FILE)} names {shown(file)}, which is no safetensors file beside it.")
    for name in value:
        _check_name(name, INDEX_FILE)
    return value


def _total_bytes(metadata: object) -> int | None:
    """Return the size that an index claims, or None; some writers give it as 1.5e10."""
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        raise UnusableFile(f"{shown(INDEX_FILE)} has a 'metadata' that is no object.")
    total = metadata.get("total_size")
    if total is None:
        return None
    is_number = isinstance(total, int | float) and not isinstance(total, bool)
    if not is_number or not 0 <= total <= MOST_NUMBER or total != int(total):
        raise UnusableFile(f"{shown(INDEX_FILE)} has a 'total_size' that is no number of bytes.")
    return int(total)


def _tensor(name: str, entry: object, *, file: str, data_begins: int) -> StoredTensor:
    _check_name(name, file)
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise UnusableFile(f"{shown(file)}: {shown(name)} has no dtype, shape and data_offsets.")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ELEMENT_BITS:
        raise UnusableFile(f"{shown(file)}: {shown(name)} has an unknown dtype {shown(str(dtype))}.")
    if not _are_numbers(shape) or len(shape) > MOST_DIMS:
        raise UnusableFile(f"{shown(file)}: {shown(name)} has a shape that is none.")
    if not _are_numbers(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise UnusableFile(f"{shown(file)}: {shown(name)} has data_offsets that are none.")
    begin, end = offsets
    if math.prod(shape) * ELEMENT_BITS[dtype] != (end - begin) * 8:
        raise UnusableFile(
            f"{shown(file)}: {shown(name)} has {end - begin} bytes, which is not its shape {shape} in {dtype}."
        )
    return StoredTensor(
        name=name, dtype=dtype, shape=tuple(shape), file=file, begin=data_begins + begin, end=data_begins + end
    )


def _check_places(tensors: Sequence[StoredTensor], data_begins: int, file_bytes: int, name: str) -> None:
    """Raise unless the tensors follow one another without gap or overlap to the end of the file."""
    reached = data_begins
    for tensor in tensors:
        if tensor.begin != reached:
            what = "overlaps the one before it" if tensor.begin < reached else "leaves a gap before it"
            raise UnusableFile(f"{shown(name)}: the data of {shown(tensor.name)} {what}.")
        reached = tensor.end
    if reached != file_bytes:
        raise UnusableFile(f"{shown(name)}: the data should end at byte {reached}, and the file at {file_bytes}.")


def _check_metadata(metadata: object, name: str) -> None:
    is_text = isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    if metadata is not None and not is_text:
        raise UnusableFile(f"{shown(name)} has a {METADATA_KEY} that is not text.")


def _check_name(name: str, file: str) -> None:
    if not name or len(name) > MOST_NAME_CHARACTERS or not name.isprintable():
        raise UnusableFile(f"{shown(file)} names a tensor {shown(name)}.")


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item <= MOST_NUMBER for item in value)


def _exists(path: Path) -> bool:
    # A link to nowhere counts as absent: caches hold such ones for files that were not fetched.
    try:
        return path.exists()
    except OSError as error:
        raise UnusableFile(f"{shown(path.name)} cannot be read.") from error


def _resolved(folder: Path, name: str, roots: Sequence[Path], pointer: str) -> Path:
    return allowed_path(str(folder / name), roots, pointer=pointer)
