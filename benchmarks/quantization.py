"""Speed of the quantizers beside bitsandbytes and a plain copy, on the same tensors in one run.

    python benchmarks/quantization.py [--threads 1 2] [--rows 4096] [--columns 11008]

Each figure is the best of several runs, in millions of parameters a second of
wall time; `exact` says whether NF4's and LLM.int8's bytes equal bitsandbytes'.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import bitsandbytes
import bitsandbytes.functional
import torch

from planners.quantization import scheme_settings
from service.worker.quantization.chunk_workers import ChunkWorkers
from service.worker.quantization.error import quantization_error
from service.worker.quantization.initialization import fill_normal
from service.worker.quantization.schemes import quantizer

SCHEMES = ("nf4", "fp4", "int8", "int8-channel", "int8-group", "fp8", "int4", "mxfp4")
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
REPEATS = 3


def main() -> None:
    """Run every scheme with every dtype on each number of threads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=11008)
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, bitsandbytes {bitsandbytes.__version__}, Mparameters/s, best of {REPEATS}")
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        for dtype in DTYPES:
            _compare(dtype, threads, (arguments.rows, arguments.columns))


def _compare(dtype: str, threads: int, shape: tuple[int, int]) -> None:
    weight = torch.empty(shape, dtype=DTYPES[dtype])
    target = torch.empty_like(weight)
    print(f"\n{dtype} {shape[0]}x{shape[1]}, {threads} thread{'s' if threads > 1 else ''}")
    with ChunkWorkers(threads=threads) as workers:

        def fill() -> None:
            fill_normal(weight, name="weight", seed=0, standard_deviation=0.02, workers=workers)

        _show("initialise", _rate(weight, fill))
        _show("plain copy", _rate(weight, lambda: target.copy_(weight)))
        references = {
            "nf4": _rate(weight, lambda: bitsandbytes.functional.quantize_4bit(weight, quant_type="nf4")),
            "fp4": _rate(weight, lambda: bitsandbytes.functional.quantize_4bit(weight, quant_type="fp4")),
            "int8-channel": _rate(weight, lambda: _llm_int8(weight)),
        }
        for scheme in SCHEMES:
            made = quantizer(scheme_settings(scheme))
            rate = _rate(weight, lambda made=made: made.quantize(weight, workers))
            note = f"{rate / references[scheme]:5.1f}x bitsandbytes" if scheme in references else ""
            if scheme in references:
                note += f" ({references[scheme]:.0f}), {'exact' if _is_exact(scheme, weight, workers) else 'DIFFERENT'}"
            _show(scheme, rate, note)
        nf4 = quantizer(scheme_settings("nf4"))
        stored = nf4.quantize(weight, workers)
        _show("nf4 error", _rate(weight, lambda: quantization_error(weight, stored, nf4, workers)))


def _llm_int8(weight: torch.Tensor) -> torch.Tensor:
    return bitsandbytes.nn.Int8Params(weight, requires_grad=False).to("cpu")


def _is_exact(scheme: str, weight: torch.Tensor, workers: ChunkWorkers) -> bool:
    parts = quantizer(scheme_settings(scheme)).quantize(weight, workers).parts
    if scheme == "int8-channel":
        reference = _llm_int8(weight)
        return torch.equal(parts["codes"], reference.CB) and torch.equal(parts["absmax"], reference.SCB)
    packed, state = bitsandbytes.functional.quantize_4bit(weight, quant_type=scheme)
    return torch.equal(parts["packed"], packed.view(-1)) and torch.equal(parts["absmax"], state.absmax)


def _rate(weight: torch.Tensor, work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return weight.numel() / best / 1e6


def _show(name: str, rate: float, note: str = "") -> None:
    print(f"  {name:<14}{rate:>9.0f}  {note}")


if __name__ == "__main__":
    main()
