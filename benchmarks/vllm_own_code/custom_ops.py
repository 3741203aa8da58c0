"""vLLM's compiled operations by shape: declared as its binaries declare them, and doing nothing.

Most write into tensors that Python has allocated, so that by shape nothing is left to
do; what returns a tensor has its shape here. Triton's kernels write likewise.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

# In which namespaces a binary's operations are asked for; which of them an operation belongs to, no schema says.
NAMESPACES = {
    "_C_stable_libtorch.abi3.so": ("_C", "_C_cache_ops", "_C_cuda_utils"),
    "_moe_C_stable_libtorch.abi3.so": ("_moe_C",),
}
SCHEMA = re.compile(r"[a-z_0-9.]+\(.*\) ?-> ?.+$")
LONGEST_SCHEMA = 6000
# Four bits and a card of compute capability 9.0: its kernels are Marlin's.
UNSUPPORTED_ON_HOPPER = "fp4"
# Words of 32 bits that Marlin's tiles of 16 rows are packed in.
MARLIN_TILE, WORD_BITS = 16, 32


def _repacked(weight: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
    # gptq_marlin_repack has a permutation before the lengths in older schemas; the last three numbers are the same.
    numbers = [value for value in (*arguments, *options.values()) if isinstance(value, int)]
    size_k, size_n, bits = numbers[:3]
    return weight.new_empty((size_k // MARLIN_TILE, size_n * MARLIN_TILE * bits // WORD_BITS), dtype=torch.int32)


def _marlin_product(a: torch.Tensor, c: torch.Tensor | None, *arguments: Any, **options: Any) -> torch.Tensor:
    numbers = [value for value in (*arguments, *options.values()) if isinstance(value, int)]
    _type, size_m, size_n = numbers[:3]
    return a.new_empty((size_m, size_n)) if c is None else c


RETURNED: dict[str, Callable[..., torch.Tensor]] = {
    "gptq_marlin_repack": _repacked,
    "awq_marlin_repack": _repacked,
    "marlin_gemm": _marlin_product,
}


def schemas(binary: Path) -> Iterator[str]:
    """Yield the schemas of operations that stand in a binary as text."""
    with binary.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = content.find(b"->")
        while found >= 0:
            start = content.rfind(b"\0", max(0, found - LONGEST_SCHEMA), found) + 1
            end = content.find(b"\0", found)
            text = content[start:end] if start and 0 < end - start < LONGEST_SCHEMA else b""
            schema = " ".join(text.decode("ascii", errors="ignore").split())
            if text.isascii() and SCHEMA.match(schema):
                yield schema
                found = end
            found = content.find(b"->", found + 2)


def declare_operations(package: Path) -> list[torch.library.Library]:
    """Declare what vLLM's binaries do, and return the libraries, which undo it when they are let go of."""
    libraries = []
    for binary, namespaces in NAMESPACES.items():
        known = list(schemas(package / binary))
        for namespace in namespaces:
            library = torch.library.Library(namespace, "FRAGMENT")
            for schema in known:
                _declare(library, schema)
            libraries.append(library)
    return libraries


def _declare(library: torch.library.Library, schema: str) -> None:
    name = schema.partition("(")[0]
    returned = schema.rpartition("->")[2].strip()
    library.define(schema)
    if name in RETURNED:
        library.impl(name, RETURNED[name], "CompositeExplicitAutograd")
    elif returned == "()":
        library.impl(name, lambda *_arguments, **_options: None, "CompositeExplicitAutograd")
    elif returned == "bool":
        supported = UNSUPPORTED_ON_HOPPER not in name
        library.impl(name, lambda *_arguments, **_options: supported, "CompositeExplicitAutograd")


class Kernel:
    """A Triton kernel that is launched and does nothing."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.fn = function
        self.__name__ = function.__name__

    def __getitem__(self, _grid: Any) -> Callable[..., None]:
        return lambda *_arguments, **_options: None


class Config:
    """What an autotuner chooses from."""

    def __init__(self, kwargs: Any = None, num_warps: int = 4, num_stages: int = 2, **_options: Any) -> None:
        self.kwargs, self.num_warps, self.num_stages = kwargs or {}, num_warps, num_stages


def launch_no_kernels() -> None:
    """Let vLLM's Triton kernels be defined and launched, where Triton has no driver."""
    import vllm.triton_utils as found

    def jit(function: Any = None, **_options: Any) -> Any:
        return Kernel(function) if callable(function) else Kernel

    found.triton.jit = jit
    found.triton.autotune = found.triton.heuristics = lambda *_arguments, **_options: lambda function: function
    found.triton.Config = Config
    found.triton.next_power_of_2 = lambda number: 1 << (number - 1).bit_length()
    found.HAS_TRITON = True
