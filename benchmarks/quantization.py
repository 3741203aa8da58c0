"""Speed of the quantizers beside bitsandbytes, torchao and a plain copy, on the same tensor in one run.

    python benchmarks/quantization.py [--threads 1 2] [--rows 4096] [--columns 5504] [--dtypes bf16]

Each figure is the best of several calls in gigabytes of original weights a second:
by wall time, and in brackets by the CPU time of all threads, which a busy machine
disturbs less. `torch` are the plain operations, `compiled` the kernels where a
compiler is at hand, `exact` whether both give the bytes of bitsandbytes. torchao
is compared where it is installed; its formats are others, except those of fp8
and mxfp4.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import bitsandbytes
import bitsandbytes.functional
import torch

from plimsoll.planners.quantization.planning import scheme_settings
from plimsoll.service.worker.quantization.checkpoints.initialization import fill_normal
from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers
from plimsoll.service.worker.quantization.kernels.native_kernels import NativeKernels, NoKernels, compiled_kernels
from plimsoll.service.worker.quantization.measuring.error import quantization_error
from plimsoll.service.worker.quantization.schemes.quantizers import quantizer

SCHEMES = ("nf4", "fp4", "int8", "int8-channel", "int8-group", "fp8", "fp8-channel", "int4", "mxfp4")
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16}
REPEATS = 3
GROUP = 128
MICROSCALING_BLOCK = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Bytes of original weights a second of wall time, and a second of CPU time."""

    wall: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.wall / 1e9:6.2f} ({self.cpu / 1e9:5.2f})"


def main() -> None:
    """Run every scheme with every dtype on each number of threads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=5504)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["bf16"])
    arguments = parser.parse_args()
    kernels = _kernels()
    print(f"torch {torch.__version__}, bitsandbytes {bitsandbytes.__version__}; GB/s of weights, best of {REPEATS}")
    if importlib.util.find_spec("torchao") is None:
        print("torchao is not installed and not compared")
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        for dtype in arguments.dtypes:
            _compare(dtype, threads, (arguments.rows, arguments.columns), kernels)


def _kernels() -> NativeKernels | None:
    started = time.perf_counter()
    try:
        kernels = compiled_kernels()
    except NoKernels as error:
        print(f"no compiled kernels: {error}")
        return None
    print(f"kernels compiled in {time.perf_counter() - started:.1f} s")
    return kernels


def _compare(dtype: str, threads: int, shape: tuple[int, int], kernels: NativeKernels | None) -> None:
    weight = torch.empty(shape, dtype=DTYPES[dtype])
    target = torch.empty_like(weight)
    print(f"\n{dtype} {shape[0]}x{shape[1]}, {threads} thread{'s' if threads > 1 else ''}: wall (CPU)")
    with ChunkWorkers(threads=threads) as plain, ChunkWorkers(threads=threads, kernels=kernels) as compiled:

        def fill() -> None:
            fill_normal(weight, name="weight", seed=0, standard_deviation=0.02, workers=plain)

        print(f"  {'initialise':<13}{_rate(weight, fill)}")
        copy = _rate(weight, lambda: target.copy_(weight))
        print(f"  {'plain copy':<13}{copy}")
        print(f"  {'':<13}{'torch':>14}{'compiled':>16}{'bitsandbytes':>16}{'torchao':>16}")
        references, others = _bitsandbytes(weight), _torchao(weight)
        for scheme in SCHEMES:
            made = quantizer(scheme_settings(scheme))
            ours = [_rate(weight, lambda made=made, on=on: made.quantize(weight, on)) for on in (plain, compiled)]
            reference = _rate(weight, references[scheme]) if scheme in references else None
            other = _rate(weight, others[scheme]) if scheme in others else None
            note = (
                f"{ours[1].cpu / copy.cpu:.2f} of a plain copy by CPU time"
                if reference is None
                else _note(scheme, weight, ours, reference, compiled)
            )
            print(f"  {scheme:<13}{_row([*ours, reference, other])}  {note}")
        for name, workers in (("torch", plain), ("compiled", compiled)):
            nf4 = quantizer(scheme_settings("nf4"))
            stored = nf4.quantize(weight, workers)
            rate = _rate(weight, lambda nf4=nf4, stored=stored, on=workers: quantization_error(weight, stored, nf4, on))
            print(f"  nf4's error, {name}: {rate}")


def _row(rates: list[Rate | None]) -> str:
    return "".join(f"{'-' if rate is None else str(rate):>14}  " for rate in rates)


def _note(scheme: str, weight: torch.Tensor, ours: list[Rate], reference: Rate, workers: ChunkWorkers) -> str:
    by_cpu = [rate.cpu / reference.cpu for rate in ours]
    exact = "exact" if _is_exact(scheme, weight, workers) else "DIFFERENT"
    return f"{by_cpu[0]:.1f}x and {by_cpu[1]:.0f}x bitsandbytes by CPU time, {exact}"


def _bitsandbytes(weight: torch.Tensor) -> Mapping[str, Callable[[], object]]:
    return {
        "nf4": lambda: bitsandbytes.functional.quantize_4bit(weight, quant_type="nf4"),
        "fp4": lambda: bitsandbytes.functional.quantize_4bit(weight, quant_type="fp4"),
        "int8-channel": lambda: _llm_int8(weight),
    }


def _torchao(weight: torch.Tensor) -> Mapping[str, Callable[[], object]]:
    if importlib.util.find_spec("torchao") is None:
        return {}
    from torchao.prototype.mx_formats.mx_tensor import to_mx
    from torchao.quantization.granularity import PerGroup, PerRow, PerTensor
    from torchao.quantization.quant_primitives import _choose_scale_float8, _quantize_affine_float8
    from torchao.quantization.quantize_.workflows.int8.int8_tensor import Int8Tensor
    from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import to_nf4

    def fp8() -> torch.Tensor:
        return _quantize_affine_float8(weight, _choose_scale_float8(weight, list(weight.shape)))

    return {
        "nf4": lambda: to_nf4(weight),
        "int8": lambda: Int8Tensor.from_hp(weight, PerTensor()),
        "int8-channel": lambda: Int8Tensor.from_hp(weight, PerRow()),
        "int8-group": lambda: Int8Tensor.from_hp(weight, PerGroup(GROUP)),
        "fp8": fp8,
        "mxfp4": lambda: to_mx(weight, torch.float4_e2m1fn_x2, MICROSCALING_BLOCK),
    }


def _llm_int8(weight: torch.Tensor) -> torch.Tensor:
    return bitsandbytes.nn.Int8Params(weight, requires_grad=False).to("cpu")


def _is_exact(scheme: str, weight: torch.Tensor, workers: ChunkWorkers) -> bool:
    parts = quantizer(scheme_settings(scheme)).quantize(weight, workers).parts
    if scheme == "int8-channel":
        reference = _llm_int8(weight)
        return torch.equal(parts["codes"], reference.CB) and torch.equal(parts["absmax"], reference.SCB)
    packed, state = bitsandbytes.functional.quantize_4bit(weight, quant_type=scheme)
    return torch.equal(parts["packed"], packed.view(-1)) and torch.equal(parts["absmax"], state.absmax)


def _rate(weight: torch.Tensor, work: Callable[[], object]) -> Rate:
    wall_seconds = cpu_seconds = float("inf")
    for _ in range(REPEATS):
        started, cpu_started = time.perf_counter(), time.process_time()
        work()
        wall_seconds = min(wall_seconds, time.perf_counter() - started)
        cpu_seconds = min(cpu_seconds, time.process_time() - cpu_started)
    return Rate(wall=weight.nbytes / wall_seconds, cpu=weight.nbytes / cpu_seconds)


if __name__ == "__main__":
    main()
