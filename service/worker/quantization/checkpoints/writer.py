"""A source's tensors quantized into the files of a checkpoint, shard by shard."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from plimsoll.service.checkpoints.headers import INDEX_FILE, SINGLE_FILE
from plimsoll.service.worker.quantization.checkpoints.formats import CheckpointFormat
from plimsoll.service.worker.quantization.checkpoints.output_folder import OutputFolder, sha256
from plimsoll.service.worker.quantization.checkpoints.progress import ByteProgress
from plimsoll.service.worker.quantization.checkpoints.shard_file import PlannedTensor, ShardFile
from plimsoll.service.worker.quantization.checkpoints.sources import READ_DTYPES, SourceTensor, WeightSource, matrix
from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers, even_spans
from plimsoll.service.worker.quantization.measuring.error import ErrorSums
from plimsoll.service.worker.quantization.measuring.measured_tensor import MeasuredTensor, TensorMeasurer
from plimsoll.service.worker.quantization.measuring.report import TensorReport

# A shard is what a killed job may lose: some seconds of work.
SHARD_BYTES = 500 * 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file to be: its source tensors, and the tensors that stand for them."""

    name: str
    tensors: tuple[SourceTensor, ...]
    planned: tuple[PlannedTensor, ...]


@dataclass(slots=True, kw_only=True)
class WrittenCheckpoint:
    """What was written, the shards of an earlier process included."""

    measured: list[MeasuredTensor] = field(default_factory=list)
    non_finite: list[str] = field(default_factory=list)
    sha256: dict[str, str] = field(default_factory=dict)
    file_bytes: int = 0
    shards_found: int = 0

    def add(self, name: str, record: Mapping[str, Any]) -> None:
        """Take in a shard's record."""
        self.measured += [_measured(entry) for entry in record["tensors"]]
        self.non_finite += record["non_finite"]
        self.sha256[name] = record["sha256"]
        self.file_bytes += record["bytes"]


def planned_shards(
    tensors: Sequence[SourceTensor], checkpoint: CheckpointFormat, *, shard_bytes: int = SHARD_BYTES
) -> tuple[Shard, ...]:
    """Return the files, each of at most `shard_bytes` unless one tensor alone is larger."""
    groups: list[tuple[list[SourceTensor], list[PlannedTensor]]] = [([], [])]
    size = 0
    for tensor in tensors:
        planned = checkpoint.planned_parts(tensor) if tensor.reason is None else (_as_it_is(tensor),)
        added = sum(part.bytes for part in planned)
        if groups[-1][0] and size + added > shard_bytes:
            groups.append(([], []))
            size = 0
        groups[-1][0].append(tensor)
        groups[-1][1].extend(planned)
        size += added
    names = [f"model-{index + 1:05d}-of-{len(groups):05d}.safetensors" for index in range(len(groups))]
    if len(groups) == 1:
        names = [SINGLE_FILE]
    return tuple(
        Shard(name=name, tensors=tuple(sources), planned=tuple(planned))
        for name, (sources, planned) in zip(names, groups, strict=True)
    )


class CheckpointWriter:
    """Writes shards into an output folder; a shard's sum is taken while the next one is quantized."""

    def __init__(
        self,
        source: WeightSource,
        checkpoint: CheckpointFormat,
        measurer: TensorMeasurer,
        workers: ChunkWorkers,
        progress: ByteProgress,
    ) -> None:
        """Take what makes tensors; `progress` hears of each of them."""
        self._source = source
        self._checkpoint = checkpoint
        self._measurer = measurer
        self._workers = workers
        self._progress = progress

    def write(self, shards: Sequence[Shard], folder: OutputFolder) -> WrittenCheckpoint:
        """Write what is not there yet, and the index; raises OSError and `NonFiniteWeights`."""
        written = WrittenCheckpoint()
        found = folder.records([shard.name for shard in shards])
        written.shards_found = len(found)
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="sums") as pool:
            last: tuple[str, Future[dict[str, Any]]] | None = None
            for shard in shards:
                if shard.name in found:
                    written.add(shard.name, found[shard.name])
                    for tensor in shard.tensors:
                        self._progress.skip(tensor)
                    continue
                record = self._write_shard(shard, folder)
                if last is not None:
                    written.add(last[0], last[1].result())
                last = shard.name, pool.submit(_kept, folder, shard.name, record)
            if last is not None:
                written.add(last[0], last[1].result())
        if len(shards) > 1:
            folder.write_json(INDEX_FILE, _index(shards))
        return written

    def _write_shard(self, shard: Shard, folder: OutputFolder) -> dict[str, Any]:
        measured: list[MeasuredTensor] = []
        non_finite: list[str] = []
        with ShardFile(folder.file(shard.name), shard.planned) as file:
            for tensor in shard.tensors:
                line = self._source.load(tensor, self._workers)
                if tensor.reason is None:
                    weight = matrix(tensor, line).to(self._workers.device)
                    one, quantized = self._measurer.measure(tensor.name, weight)
                    measured.append(one)
                    for name, part in self._checkpoint.stored_parts(tensor, quantized).items():
                        file.write(name, part)
                else:
                    if not self._is_finite(tensor, line):
                        non_finite.append(tensor.name)
                    file.write_bytes(tensor.name, line)
                self._progress.advance(tensor)
            file.finish()
        return {
            "bytes": folder.file(shard.name).stat().st_size,
            "tensors": [dataclasses.asdict(one) for one in measured],
            "non_finite": non_finite,
        }

    def _is_finite(self, tensor: SourceTensor, line: torch.Tensor) -> bool:
        if tensor.dtype not in READ_DTYPES:
            return True
        values = line.view(READ_DTYPES[tensor.dtype])

        def is_finite(start: int, stop: int) -> bool:
            return bool(torch.isfinite(values[start:stop]).all())

        return all(self._workers.map(is_finite, even_spans(values.numel(), self._workers.chunk_elements)))


def _as_it_is(tensor: SourceTensor) -> PlannedTensor:
    return PlannedTensor(name=tensor.name, dtype=tensor.dtype, shape=tensor.shape)


def _kept(folder: OutputFolder, name: str, record: Mapping[str, Any]) -> dict[str, Any]:
    whole = {**record, "sha256": sha256(folder.file(name))}
    folder.keep(name, whole)
    return whole


def _index(shards: Sequence[Shard]) -> dict[str, Any]:
    weight_map = {planned.name: shard.name for shard in shards for planned in shard.planned}
    # What loaders read is the map; the size is for people, and states count as their most.
    total = sum(planned.bytes for shard in shards for planned in shard.planned)
    return {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}


def _measured(entry: Mapping[str, Any]) -> MeasuredTensor:
    report = {**entry["report"], "shape": tuple(entry["report"]["shape"])}
    sums = {**entry["sums"], "histogram": tuple(entry["sums"]["histogram"])}
    return MeasuredTensor(report=TensorReport(**report), sums=ErrorSums(**sums))
