"""Where weights come from: drawn at random, or read from a safetensors checkpoint one tensor at a time."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from plimsoll.planners.architecture import ModelSpec, Part, Weight
from plimsoll.planners.quantization.planning import skip_reason
from plimsoll.planners.quantization.stacks import inputs_are_last
from plimsoll.service.checkpoints.headers import ELEMENT_BITS, Checkpoint, StoredTensor
from plimsoll.service.checkpoints.stored_names import sorted_names
from plimsoll.service.ground.allowed_paths import allowed_path
from plimsoll.service.ground.errors import InvalidCheckpoint
from plimsoll.service.worker.quantization.checkpoints.initialization import fill_normal
from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers, even_spans

# What the quantizers read, by the names that safetensors files use.
READ_DTYPES: Mapping[str, torch.dtype] = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
RANDOM_DTYPE = "BF16"
POINTER = "/weights/path"
MOST_NAMES_IN_A_SENTENCE = 3
# One read of a thread: long enough that the system calls vanish.
READ_BYTES = 2**24


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTensor:
    """One tensor as it is stored. `weight` describes it; None where the description does not know it.

    `reason` says why a scheme leaves it alone; None where it is quantized.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    weight: Weight | None
    reason: str | None

    @property
    def stored_bytes(self) -> int:
        """Return its bytes in the checkpoint."""
        return math.prod(self.shape) * ELEMENT_BITS[self.dtype] // 8


class WeightSource(Protocol):
    """Tensors in the order in which they are best read."""

    @property
    def tensors(self) -> Sequence[SourceTensor]:
        """Return all of them, those left alone included."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Return what a reader of the result should know about them."""
        ...

    def load(self, tensor: SourceTensor, workers: ChunkWorkers) -> torch.Tensor:
        """Return its bytes as a line on the CPU or, drawn, on the workers' device; good until the next call."""
        ...


def matrix(tensor: SourceTensor, stored: torch.Tensor) -> torch.Tensor:
    """Return a tensor that is to be quantized as [..., output features, input features]."""
    values = stored.view(READ_DTYPES[tensor.dtype]).view(tensor.shape)
    if tensor.weight is None or inputs_are_last(tensor.weight):
        return values
    return values.transpose(-1, -2).contiguous()


def dtype_name(dtype: str) -> str:
    """Return torch's name of a dtype that is read, as a `config.json` has it."""
    return str(READ_DTYPES[dtype]).removeprefix("torch.")


class RandomSource:
    """An untrained model: matrices normal about 0, the scales of norms 1, biases 0."""

    def __init__(self, spec: ModelSpec, scheme: str, *, seed: int, standard_deviation: float) -> None:
        self._seed = seed
        self._standard_deviation = standard_deviation
        self.tensors = tuple(
            SourceTensor(
                name=name, dtype=RANDOM_DTYPE, shape=weight.shape, weight=weight, reason=skip_reason(weight, scheme)
            )
            for name, weight in spec.named_weights()
        )
        self.notes = (
            (
                f"Weights drawn from a normal distribution about 0 with standard deviation {standard_deviation} and "
                "rounded to bf16."
            ),
        )

    def load(self, tensor: SourceTensor, workers: ChunkWorkers) -> torch.Tensor:
        """Return the drawn tensor, the same for the same seed and name."""
        values = torch.empty(math.prod(tensor.shape), dtype=READ_DTYPES[tensor.dtype], device=workers.device)
        if tensor.weight is not None and tensor.weight.part is Part.NORM and tensor.name.endswith("weight"):
            values.fill_(1.0)
        elif tensor.name.endswith("bias"):
            values.zero_()
        else:
            fill_normal(
                values,
                name=tensor.name,
                seed=self._seed,
                standard_deviation=self._standard_deviation,
                workers=workers,
            )
        return values.view(torch.uint8)


class CheckpointSource:
    """A safetensors checkpoint whose headers were read and checked; data is read into one buffer.

    Read and not mapped: a file that is cut short meanwhile is then an error and
    not a crash, and no page of it counts as this process's memory.
    """

    def __init__(self, checkpoint: Checkpoint, spec: ModelSpec, scheme: str, *, roots: Sequence[Path]) -> None:
        """Match names and shapes with the description; raises `InvalidCheckpoint` where weights lack or differ."""
        self._checkpoint = checkpoint
        self._roots = roots
        self._buffer = torch.empty(0, dtype=torch.uint8)
        described = _described(checkpoint, spec)
        in_order = sorted(checkpoint.tensors.values(), key=lambda stored: (stored.file, stored.begin))
        self.tensors = tuple(_source_tensor(stored, described.get(stored.name), scheme) for stored in in_order)
        unknown = [tensor.name for tensor in self.tensors if tensor.weight is None]
        self.notes = (f"Left alone, since the description does not know them: {_some(unknown)}.",) if unknown else ()

    def load(self, tensor: SourceTensor, workers: ChunkWorkers) -> torch.Tensor:
        """Return its bytes; raises `InvalidCheckpoint` where the file changed since its header was read."""
        stored = self._checkpoint.tensors[tensor.name]
        if self._buffer.numel() < stored.stored_bytes:
            self._buffer = torch.empty(stored.stored_bytes, dtype=torch.uint8)
        line = self._buffer[: stored.stored_bytes]
        content = line.numpy().data

        with self._opened(stored.file) as file:

            def read(start: int, stop: int) -> None:
                _read_fully(file, content[start:stop], stored.begin + start, name=stored.file)

            workers.map(read, even_spans(stored.stored_bytes, READ_BYTES))
        return line

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        path = allowed_path(str(self._checkpoint.folder / name), self._roots, pointer=POINTER)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise InvalidCheckpoint(f"{name} cannot be read any more.", pointer=POINTER) from error
        try:
            yield file
        finally:
            os.close(file)


def _read_fully(file: int, content: memoryview, offset: int, *, name: str) -> None:
    done = 0
    while done < len(content):
        count = os.preadv(file, [content[done:]], offset + done)
        if count == 0:
            raise InvalidCheckpoint(f"{name} became shorter while it was read.", pointer=POINTER)
        done += count


def _described(checkpoint: Checkpoint, spec: ModelSpec) -> dict[str, Weight]:
    """Return the described weight of each stored name; raises `InvalidCheckpoint` unless all are there, whole."""
    if not checkpoint.is_complete:
        raise InvalidCheckpoint(f"Files are not there: {_some(checkpoint.absent_files)}.", pointer=POINTER)
    if checkpoint.not_in_files:
        raise InvalidCheckpoint(
            f"The index names tensors that no file holds: {_some(checkpoint.not_in_files)}.", pointer=POINTER
        )
    weights = dict(spec.named_weights())
    found = sorted_names(checkpoint, spec, weights.keys())
    if found.packed or found.quantization:
        some = _some([*found.packed.values(), *found.quantization])
        raise InvalidCheckpoint(f"The checkpoint is quantized already: {some}.", pointer=POINTER)
    missing = [name for name in weights if name not in found.whole]
    if missing:
        raise InvalidCheckpoint(f"The checkpoint lacks weights of the model: {_some(missing)}.", pointer=POINTER)
    for name, stored_name in found.whole.items():
        stored = checkpoint.tensors[stored_name]
        if stored.shape != weights[name].shape:
            described = list(weights[name].shape)
            raise InvalidCheckpoint(
                f"{stored_name} is {list(stored.shape)} in the checkpoint and {described} by the config.",
                pointer=POINTER,
            )
    return {stored_name: weights[name] for name, stored_name in found.whole.items()}


def _source_tensor(stored: StoredTensor, weight: Weight | None, scheme: str) -> SourceTensor:
    reason = "not in the description" if weight is None else skip_reason(weight, scheme)
    if reason is None and stored.dtype not in READ_DTYPES:
        raise InvalidCheckpoint(
            f"{stored.name} is stored as {stored.dtype}; weights to quantize are {', '.join(READ_DTYPES)}.",
            pointer=POINTER,
        )
    return SourceTensor(name=stored.name, dtype=stored.dtype, shape=stored.shape, weight=weight, reason=reason)


def _some(names: Sequence[str]) -> str:
    listed = ", ".join(names[:MOST_NAMES_IN_A_SENTENCE])
    more = len(names) - MOST_NAMES_IN_A_SENTENCE
    return f"{listed} and {more:,} more" if more > 0 else listed
