"""A random checkpoint of a billion parameters quantized whole, and once more after a kill -9 in the middle.

    python benchmarks/quantized_checkpoint.py [--folder FOLDER] [--model ID] [--scheme nf4]

Prints time, rate and peak memory of the job's own process beside those of
bitsandbytes in a process of its own, and whether the killed and resumed job left
the same bytes. Needs about twice the checkpoint's size on the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bitsandbytes.functional
import torch

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.service.worker.processes.child import ChildLimits, ChildOutcome, run_child
from plimsoll.service.worker.processes.child_main import peak_host_bytes
from plimsoll.service.worker.quantization.checkpoints.output_folder import PARTIAL_SUFFIX, RECORD_SUFFIX, SUMS_FILE
from plimsoll.service.worker.quantization.checkpoints.shard_file import PlannedTensor, ShardFile
from plimsoll.service.worker.quantization.checkpoints.sources import READ_DTYPES, RandomSource
from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers

TARGET = "plimsoll.service.worker.quantization.task:run"
# The bound that the job is to keep: this and its largest tensor.
MEMORY_BYTES = 2 * 2**30
# bitsandbytes takes a minute for a billion parameters; so many say how fast it is.
COMPARED_PARAMETERS = 2**26
LONGEST_SECONDS = 1800.0
POLL_SECONDS = 0.02


def main() -> None:
    """Write, quantize, kill, resume and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--model", default="meta-llama/Llama-3.2-1B")
    parser.add_argument("--scheme", default="nf4")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="plimsoll-checkpoint-") as folder:
        _run(Path(folder), arguments.model, arguments.scheme)


def _run(folder: Path, model: str, scheme: str) -> None:
    os.environ["PLIMSOLL_MODEL_ROOTS"] = os.environ["PLIMSOLL_OUTPUT_ROOTS"] = str(folder)
    config = catalogue().model(model).config
    largest_bytes = _write_checkpoint(folder / "source", config)
    limits = ChildLimits(memory_bytes=MEMORY_BYTES + largest_bytes, seconds=LONGEST_SECONDS, limit_address_space=False)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    outcome = asyncio.run(run_child(TARGET, _request(config, folder, scheme, "whole"), limits=limits))
    cpu_seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - used.ru_utime
    _show(outcome, largest_bytes, cpu_seconds)
    _show_bitsandbytes(scheme, outcome.result["quantized_parameters"] if outcome.result else 0)
    request = _request(config, folder, scheme, "killed")
    shards = _killed_after_a_shard(request, folder / f".killed{PARTIAL_SUFFIX}")
    asyncio.run(run_child(TARGET, request, limits=limits))
    same = _sums(folder / "whole") == _sums(folder / "killed")
    print(f"  killed with {shards} shard(s) written, then resumed: {'the same bytes' if same else 'OTHER BYTES'}")


def _request(config: Mapping[str, Any], folder: Path, scheme: str, output: str) -> dict[str, Any]:
    return {
        "model": {"name": "random", "config": config},
        "scheme": scheme,
        "double_quantization": scheme in ("nf4", "fp4"),
        "weights": {"path": str(folder / "source")},
        "output": str(folder / output),
    }


def _write_checkpoint(folder: Path, config: Mapping[str, Any]) -> int:
    """Write random weights in bf16 and return the bytes of the largest tensor."""
    folder.mkdir()
    source = RandomSource(describe_config(config, name="random"), "nf4", seed=0, standard_deviation=0.02)
    planned = [PlannedTensor(name=one.name, dtype=one.dtype, shape=one.shape) for one in source.tensors]
    started = time.perf_counter()
    with ChunkWorkers() as workers, ShardFile(folder / "model.safetensors", planned) as file:
        for tensor in source.tensors:
            file.write(tensor.name, source.load(tensor, workers).view(READ_DTYPES[tensor.dtype]))
        file.finish()
    (folder / "config.json").write_text(json.dumps(config))
    total = sum(one.stored_bytes for one in source.tensors)
    print(f"  {total / 1e9:.2f} GB of random weights written in {time.perf_counter() - started:.1f} s")
    return max(one.stored_bytes for one in source.tensors)


def _show(outcome: ChildOutcome, largest_bytes: int, cpu_seconds: float) -> None:
    if outcome.result is None:
        sys.exit(f"The job failed: {outcome.error}")
    result = outcome.result
    print(
        f"  whole job {outcome.seconds:.1f} s ({cpu_seconds:.1f} s of user CPU), quantizing alone "
        f"{result['seconds']:.1f} s: {result['quantized_parameters'] / result['seconds'] / 1e6:.0f} Mparameters/s, "
        f"{result['bytes_per_second'] / 1e9:.2f} GB/s"
    )
    print(
        f"  peak memory {outcome.peak_host_bytes / 1e9:.2f} GB, of which the largest tensor is "
        f"{largest_bytes / 1e9:.2f} GB; relative error {result['relative_error']:.4f}"
    )
    for note in result["assumptions"]:
        print(f"  {note}")


def _show_bitsandbytes(scheme: str, quantized_parameters: int) -> None:
    if scheme not in ("nf4", "fp4"):
        return
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        one = pool.submit(_bitsandbytes_in_its_own_process, scheme).result()
    rate = COMPARED_PARAMETERS / one.seconds
    print(
        f"  bitsandbytes quantizes {rate / 1e6:.0f} Mparameters/s ({COMPARED_PARAMETERS / one.cpu_seconds / 1e6:.1f} a "
        f"second of CPU): {quantized_parameters / rate:.0f} s for this model, quantizing alone"
    )
    print(
        f"  its process takes {one.peak_host_bytes / 1e9:.2f} GB for a matrix of {COMPARED_PARAMETERS * 2 / 1e9:.2f} GB"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    seconds: float
    cpu_seconds: float
    peak_host_bytes: int


def _bitsandbytes_in_its_own_process(scheme: str) -> _Compared:
    weight = torch.empty(COMPARED_PARAMETERS // 4096, 4096, dtype=torch.bfloat16)
    for row in weight:
        row.copy_(torch.randn(row.numel()).mul_(0.02))
    started, cpu_started = time.perf_counter(), time.process_time()
    bitsandbytes.functional.quantize_4bit(weight, quant_type=scheme, compress_statistics=True)
    return _Compared(
        seconds=time.perf_counter() - started,
        cpu_seconds=time.process_time() - cpu_started,
        peak_host_bytes=peak_host_bytes() or 0,
    )


def _killed_after_a_shard(request: Mapping[str, Any], partial: Path) -> int:
    """Run the task in a process of its own, kill it once a shard is whole, and return how many were."""
    limits = json.dumps({"memory_bytes": 2**40, "limit_address_space": False, "parent_pid": os.getpid()})
    command = [sys.executable, "-m", "plimsoll.service.worker.processes.child_main", TARGET, limits]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as child:
        assert child.stdin is not None
        child.stdin.write(json.dumps(request).encode())
        child.stdin.close()
        while child.poll() is None and not _records(partial):
            time.sleep(POLL_SECONDS)
        child.send_signal(signal.SIGKILL)
    shards = _records(partial)
    if not shards:
        sys.exit("The job ended before it could be killed.")
    return shards


def _records(partial: Path) -> int:
    return len(list(partial.glob(f"*{RECORD_SUFFIX}")))


def _sums(output: Path) -> str:
    return (output / SUMS_FILE).read_text()


if __name__ == "__main__":
    if shutil.disk_usage(tempfile.gettempdir()).free < 8 * 10**9:
        print("Less than 8 GB are free where temporary files go; name another place by --folder.")
    main()
