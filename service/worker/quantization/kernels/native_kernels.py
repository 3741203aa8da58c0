"""The quantizers' inner loops compiled from `kernels.c`, where a C compiler is at hand.

Compiling takes some seconds, so it is worth it for a large model only. Nothing
is kept: the library is built in a temporary folder for the process that uses it.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("kernels.c")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
# For this machine's own vectors; compilers that do not know the first take the second.
MACHINE_FLAGS: tuple[tuple[str, ...], ...] = (("-march=native", "-mprefer-vector-width=512"), ("-march=native",), ())
COMPILE_SECONDS = 120.0

# As `kernels.c` numbers them.
DTYPES: Mapping[torch.dtype, int] = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
# The longest piece that `kernels.c` holds on its stack, which an int4 group must fit.
PIECE_ELEMENTS = 1024

_LINE = (ctypes.c_void_p, ctypes.c_int)
_COUNT, _PLACE, _NUMBER = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
_ARGUMENTS = {
    "quantize_blocks": (*_LINE, _COUNT, _COUNT, _PLACE, _PLACE, _PLACE, _PLACE),
    "quantize_microscaled": (*_LINE, _COUNT, _COUNT, _PLACE, _PLACE, _PLACE, _PLACE),
    "quantize_int8_groups": (*_LINE, _COUNT, _COUNT, _PLACE, _PLACE),
    "quantize_int8_rows": (*_LINE, _COUNT, _COUNT, _PLACE, _PLACE),
    "quantize_e4m3_rows": (*_LINE, _COUNT, _COUNT, _PLACE, _PLACE),
    "quantize_int4_groups": (*_LINE, _COUNT, _COUNT, _PLACE, _PLACE, _PLACE),
    "largest_magnitude": (*_LINE, _COUNT),
    "quantize_int8": (*_LINE, _COUNT, _NUMBER, _PLACE),
    "quantize_e4m3": (*_LINE, _COUNT, _NUMBER, _PLACE),
    "quantize_scales": (_PLACE, _COUNT, _COUNT, _PLACE, _PLACE, _PLACE),
    "sum_errors": (*_LINE, _PLACE, _COUNT, _PLACE),
    "restore_blocks": (_PLACE, _COUNT, _COUNT, _PLACE, _PLACE, _PLACE),
}
_WITHOUT_ANSWER = ("quantize_int8", "quantize_e4m3", "quantize_scales", "sum_errors", "restore_blocks")


class NoKernels(Exception):
    """There are no compiled kernels, and why; plain torch gives the same bytes, only slower."""


class NativeKernels:
    """The functions of `kernels.c` on contiguous CPU tensors; they leave Python's lock to other threads.

    Those that return a magnitude return the largest that they read as an fp32
    number, NaN where they read one.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        for name, arguments in _ARGUMENTS.items():
            function = getattr(library, name)
            function.argtypes = arguments
            function.restype = None if name in _WITHOUT_ANSWER else ctypes.c_uint32

    @staticmethod
    def take(weight: torch.Tensor) -> bool:
        """Return whether a tensor is one that the kernels read."""
        return weight.device.type == "cpu" and weight.dtype in DTYPES and weight.is_contiguous()

    def quantize_blocks(
        self,
        line: torch.Tensor,
        *,
        block_size: int,
        thresholds: torch.Tensor,
        codes: torch.Tensor,
        packed: torch.Tensor,
        absmax: torch.Tensor,
    ) -> float:
        """Fill `packed` and `absmax` from whole blocks; return the largest magnitude."""
        return self._magnitude(
            self._library.quantize_blocks(
                *_line(line), absmax.numel(), block_size, *_places(thresholds, codes, packed, absmax)
            )
        )

    def quantize_microscaled(
        self,
        line: torch.Tensor,
        *,
        group_size: int,
        thresholds: torch.Tensor,
        codes: torch.Tensor,
        packed: torch.Tensor,
        exponents: torch.Tensor,
    ) -> float:
        """Fill `packed` and `exponents` from whole groups; return the largest magnitude."""
        return self._magnitude(
            self._library.quantize_microscaled(
                *_line(line), exponents.numel(), group_size, *_places(thresholds, codes, packed, exponents)
            )
        )

    def quantize_int8_groups(
        self, line: torch.Tensor, *, group_size: int, codes: torch.Tensor, scales: torch.Tensor
    ) -> float:
        """Fill `codes` and `scales` from whole groups; return the largest magnitude."""
        return self._magnitude(
            self._library.quantize_int8_groups(*_line(line), scales.numel(), group_size, *_places(codes, scales))
        )

    def quantize_int8_rows(self, matrix: torch.Tensor, *, codes: torch.Tensor, absmax: torch.Tensor) -> float:
        """Fill `codes` and `absmax` from whole rows; return the largest magnitude after the cast to fp16."""
        rows, columns = matrix.shape
        return self._magnitude(self._library.quantize_int8_rows(*_line(matrix), rows, columns, *_places(codes, absmax)))

    def quantize_e4m3_rows(self, matrix: torch.Tensor, *, codes: torch.Tensor, scales: torch.Tensor) -> float:
        """Fill `codes` and `scales` from whole rows; return the largest magnitude."""
        rows, columns = matrix.shape
        return self._magnitude(self._library.quantize_e4m3_rows(*_line(matrix), rows, columns, *_places(codes, scales)))

    def quantize_int4_groups(
        self,
        line: torch.Tensor,
        *,
        group_size: int,
        packed: torch.Tensor,
        scales: torch.Tensor,
        zero_points: torch.Tensor,
    ) -> float:
        """Fill the parts from whole groups of at most `PIECE_ELEMENTS`; return the largest magnitude."""
        return self._magnitude(
            self._library.quantize_int4_groups(
                *_line(line), scales.numel(), group_size, *_places(packed, scales, zero_points)
            )
        )

    def largest_magnitude(self, line: torch.Tensor) -> float:
        """Return the largest magnitude of a line."""
        return self._magnitude(self._library.largest_magnitude(*_line(line), line.numel()))

    def quantize_int8(self, line: torch.Tensor, *, divisor: float, codes: torch.Tensor) -> None:
        """Fill `codes` with the line over `divisor`, rounded and cut to int8."""
        self._library.quantize_int8(*_line(line), line.numel(), divisor, codes.data_ptr())

    def quantize_e4m3(self, line: torch.Tensor, *, divisor: float, codes: torch.Tensor) -> None:
        """Fill `codes` with the line over `divisor` in e4m3, cut to its largest value."""
        self._library.quantize_e4m3(*_line(line), line.numel(), divisor, codes.data_ptr())

    def quantize_scales(
        self,
        centred: torch.Tensor,
        *,
        block_size: int,
        code_of_bin: torch.Tensor,
        codes: torch.Tensor,
        nested: torch.Tensor,
    ) -> None:
        """Fill `codes` and `nested` from scales less their mean."""
        self._library.quantize_scales(
            centred.data_ptr(), centred.numel(), block_size, *_places(code_of_bin, codes, nested)
        )

    def sum_errors(self, line: torch.Tensor, restored: torch.Tensor) -> tuple[float, float, float]:
        """Return the squares of the originals, those of the differences, and the largest difference."""
        sums = (ctypes.c_double * 3)()
        self._library.sum_errors(*_line(line), restored.data_ptr(), line.numel(), ctypes.addressof(sums))
        return sums[0], sums[1], sums[2]

    def restore_blocks(
        self,
        packed: torch.Tensor,
        *,
        block_size: int,
        pairs: torch.Tensor,
        scales: torch.Tensor,
        restored: torch.Tensor,
    ) -> None:
        """Fill `restored` from whole blocks; `pairs` are the two fp32 values of each of 256 bytes."""
        self._library.restore_blocks(packed.data_ptr(), scales.numel(), block_size, *_places(pairs, scales, restored))

    @staticmethod
    def _magnitude(bits: int) -> float:
        return ctypes.c_float.from_buffer(ctypes.c_uint32(bits)).value


def compiled_kernels() -> NativeKernels:
    """Compile and load the kernels; raises `NoKernels` where there is no compiler or it fails."""
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise NoKernels("no C compiler is installed")
    with tempfile.TemporaryDirectory(prefix="plimsoll-kernels-") as folder:
        library = Path(folder) / "kernels.so"
        _compile(compiler, library)
        try:
            # Once loaded it needs no file any more.
            return NativeKernels(ctypes.CDLL(str(library)))
        except OSError as error:
            raise NoKernels(f"the compiled library cannot be loaded ({error})") from error


def _compile(compiler: str, library: Path) -> None:
    said = ""
    for machine_flags in MACHINE_FLAGS:
        command = [compiler, *FLAGS, *machine_flags, str(SOURCE), "-o", str(library), "-lm"]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoKernels(f"the C compiler cannot be run ({error})") from error
        if ended.returncode == 0:
            return
        said = ended.stderr.strip().splitlines()[-1] if ended.stderr.strip() else f"status {ended.returncode}"
    raise NoKernels(f"the C compiler fails ({said})")


def _line(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), DTYPES[tensor.dtype]


def _places(*tensors: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.data_ptr() for tensor in tensors)
