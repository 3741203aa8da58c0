"""Whether a job runs on compiled kernels: where they are worth compiling, can be, and prove exact."""

from __future__ import annotations

import torch

from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers
from plimsoll.service.worker.quantization.kernels.native_kernels import (
    DTYPES,
    NativeKernels,
    NoKernels,
    compiled_kernels,
)
from plimsoll.service.worker.quantization.schemes.quantized import Quantizer

# Compiling takes 4 to 6 s of one core (gcc 12); plain torch quantizes 60 to 250 million parameters a second on one.
WORTH_COMPILING_PARAMETERS = 2**29
# Whole blocks of every size that there is, and a part of one at the end.
PROBE_ROWS, PROBE_COLUMNS = 9, 4096
# Magnitudes from below bitsandbytes' least scale to above the thresholds of every code book.
PROBE_EXPONENTS = (-42, -39, -8, -2, 0, 4)


def kernels_for_job(scheme: Quantizer, *, parameters: int, device: torch.device) -> tuple[NativeKernels | None, str]:
    """Return the compiled kernels, or None where plain torch does the job, and a sentence that says which and why."""
    if device.type != "cpu":
        return None, f"Quantized by plain torch operations on {device.type}."
    if parameters < WORTH_COMPILING_PARAMETERS:
        return None, "Quantized by plain torch operations: compiling kernels would take longer than it saves."
    try:
        kernels = proven(compiled_kernels(), scheme)
    except NoKernels as error:
        return None, f"Quantized by plain torch operations, which are slower: {error}."
    return kernels, "Quantized by kernels compiled for this machine, found equal to the plain torch operations first."


def proven(kernels: NativeKernels, scheme: Quantizer) -> NativeKernels:
    """Return the kernels once they gave the very bytes of plain torch on a probe of each dtype.

    A compiler may have faults of its own; raises `NoKernels` where a byte differs.
    """
    for dtype in DTYPES:
        probe = _probe(dtype)
        with ChunkWorkers(threads=1) as plain, ChunkWorkers(threads=1, kernels=kernels) as compiled:
            expected, found = scheme.quantize(probe, plain), scheme.quantize(probe, compiled)
        for name, part in expected.parts.items():
            if not torch.equal(_raw(part), _raw(found.parts[name])):
                raise NoKernels(f"the compiled kernels give other {name} than torch on {dtype}")
    return kernels


def _probe(dtype: torch.dtype) -> torch.Tensor:
    """Return normal numbers of many magnitudes, zeros and one outlier."""
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn(PROBE_ROWS, PROBE_COLUMNS, generator=generator)
    for row, exponent in enumerate(PROBE_EXPONENTS):
        probe[row] *= 10.0**exponent
    probe[len(PROBE_EXPONENTS)] = 0.0
    probe[-1, PROBE_COLUMNS // 2] = 100.0
    return probe.clamp(-1e4, 1e4).to(dtype)


def _raw(part: torch.Tensor) -> torch.Tensor:
    return part.reshape(-1).view(torch.uint8)
