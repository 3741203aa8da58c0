"""One safetensors file whose tensors are written as they come, each at its own place.

The sizes of nearly all tensors are known beforehand, so that each is written
where it belongs and forgotten; only short ones whose length is not known yet
(quantization states, JSON) are kept to the end. The header has its room at the
beginning and is written last.

Source: https://github.com/huggingface/safetensors, README ("Format"); the order
of the data is safetensors' own, wider elements first, so that all are aligned.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from plimsoll.service.checkpoints.headers import ELEMENT_BITS, LENGTH_BYTES

# safetensors pads its header to a multiple of this.
HEADER_ALIGNMENT_BYTES = 8
# bitsandbytes' states take 80 to 200 bytes.
MOST_LATE_BYTES = 512
METADATA = {"format": "pt"}

SAFETENSORS_NAMES: Mapping[torch.dtype, str] = {
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTensor:
    """A tensor that a file will hold; one whose `shape` is None is a line of bytes of unknown length."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None

    @property
    def bytes(self) -> int:
        """Return its bytes, or the most that they may be."""
        if self.shape is None:
            return MOST_LATE_BYTES
        return torch.Size(self.shape).numel() * ELEMENT_BITS[self.dtype] // 8


class ShardFile:
    """A file being written; use it in a with statement, which closes it. `finish` makes it whole."""

    def __init__(self, path: Path, planned: Sequence[PlannedTensor]) -> None:
        """Create the file at its full length, so that a full disk shows at once; raises OSError."""
        known = [tensor for tensor in planned if tensor.shape is not None]
        known.sort(key=lambda tensor: (-ELEMENT_BITS[tensor.dtype], tensor.name))
        self._planned = {tensor.name: tensor for tensor in planned}
        self._begins: dict[str, int] = {}
        end = 0
        for tensor in known:
            self._begins[tensor.name] = end
            end += tensor.bytes
        self._known_bytes = end
        self._late: dict[str, bytes] = {}
        self._written: set[str] = set()
        self._header_bytes = self._most_header_bytes()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        os.posix_fallocate(self._file, 0, self._data_begins + max(end, 1))

    def __enter__(self) -> ShardFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    @property
    def _data_begins(self) -> int:
        return LENGTH_BYTES + self._header_bytes

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Write one tensor; raises ValueError where it is not as planned, and OSError."""
        planned = self._planned[name]
        line = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        if name in self._written or SAFETENSORS_NAMES[tensor.dtype] != planned.dtype:
            raise ValueError(f"{name} is written twice, or as {tensor.dtype} and not as {planned.dtype}.")
        if planned.shape is not None and line.numel() != planned.bytes:
            raise ValueError(f"{name} has {line.numel()} bytes and not the {planned.bytes} planned.")
        self._write_line(name, line)

    def write_bytes(self, name: str, line: torch.Tensor) -> None:
        """Write one tensor whose bytes are there as a line of uint8; raises ValueError and OSError."""
        if line.numel() != self._planned[name].bytes:
            raise ValueError(f"{name} has {line.numel()} bytes and not the {self._planned[name].bytes} planned.")
        self._write_line(name, line.cpu())

    def finish(self) -> None:
        """Write what was kept and the header, and wait until all is on the disk.

        Raises ValueError where a tensor was not written, and OSError.
        """
        absent = self._planned.keys() - self._written
        if absent:
            raise ValueError(f"Not written: {', '.join(sorted(absent))}.")
        end = self._known_bytes
        for name in sorted(self._late):
            self._begins[name] = end
            _write_fully(self._file, memoryview(self._late[name]), self._data_begins + end)
            end += len(self._late[name])
        header = _header(self._entries()).ljust(self._header_bytes)
        if len(header) != self._header_bytes:
            raise ValueError(f"A header of {len(header)} bytes does not fit the {self._header_bytes} kept for it.")
        _write_fully(self._file, memoryview(len(header).to_bytes(LENGTH_BYTES, "little") + header), 0)
        os.ftruncate(self._file, self._data_begins + end)
        os.fsync(self._file)

    def _write_line(self, name: str, line: torch.Tensor) -> None:
        self._written.add(name)
        content = line.numpy().data
        if self._planned[name].shape is None:
            if len(content) > MOST_LATE_BYTES:
                raise ValueError(f"{name} has {len(content)} bytes; at most {MOST_LATE_BYTES} were planned.")
            self._late[name] = content.tobytes()
        else:
            _write_fully(self._file, content, self._data_begins + self._begins[name])

    def _entries(self) -> dict[str, object]:
        entries: dict[str, object] = {"__metadata__": METADATA}
        for name, begin in sorted(self._begins.items(), key=lambda item: item[1]):
            planned = self._planned[name]
            length = planned.bytes if planned.shape is not None else len(self._late[name])
            shape = planned.shape if planned.shape is not None else (length,)
            entries[name] = {"dtype": planned.dtype, "shape": list(shape), "data_offsets": [begin, begin + length]}
        return entries

    def _most_header_bytes(self) -> int:
        """Return the header's length with every number as long as it may become."""
        largest = sum(tensor.bytes for tensor in self._planned.values())
        entries: dict[str, object] = {"__metadata__": METADATA}
        for planned in self._planned.values():
            shape = (MOST_LATE_BYTES,) if planned.shape is None else planned.shape
            entries[planned.name] = {
                "dtype": planned.dtype,
                "shape": list(shape),
                "data_offsets": [largest, largest],
            }
        return -(-len(_header(entries)) // HEADER_ALIGNMENT_BYTES) * HEADER_ALIGNMENT_BYTES


def _header(entries: Mapping[str, object]) -> bytes:
    return json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()


def _write_fully(file: int, content: memoryview, offset: int) -> None:
    done = 0
    while done < len(content):
        done += os.pwrite(file, content[done:], offset + done)
