"""TRL, and what it is given to run on fake tensors: all tokens scored, and kernels that only write.

A proof reads no data: where the packages for those are not installed, names stand in for them while TRL is imported.

Source: TRL 1.16, trainer/utils.py, `add_fused_lm_head`; kernels/chunked_logprob.py, `ChunkedLogProbFunction`.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.recording.patches import replaced
from plimsoll.service.worker.training.foreign_code import names_given, quiet, unused_modules

ATEN = torch.ops.aten
# What makes a step, and what only its data and tables are made of.
USED = ("trainer.dpo_trainer", "trainer.dpo_config", "trainer.utils", "models.utils", "kernels.chunked_logprob")
UNUSED = frozenset({"datasets", "pandas", "pyarrow"})
# Those that write at indices, by where among their arguments the indices are.
WRITES_AT_INDICES = (ATEN.index_put.default, ATEN.index_put_.default, ATEN._index_put_impl_.default)


def load_trl() -> Any:
    """Return the package with its trainer of preferences; a worker without it raises `NotYetAvailable`."""
    try:
        importlib.import_module("transformers.trainer")  # which looks for datasets itself
        with unused_modules(UNUSED):
            trl = importlib.import_module("trl")
            for name in USED:
                importlib.import_module(f"trl.{name}")
    except ModuleNotFoundError as error:
        raise NotYetAvailable(
            "Steps beside a reference model are traced by TRL's own code, which this worker does not have: install, "
            "with pip's option --no-deps, TRL 1.16 there.",
            pointer="/training/companions",
        ) from error
    return trl


@contextlib.contextmanager
def runnable_trl() -> Iterator[None]:
    """Let TRL's loss run on fake tensors as on a GPU."""
    load_trl()
    with quiet("trl"), _kernels_of_a_gpu(), EveryTokenIsScored():
        yield


class EveryTokenIsScored(TorchDispatchMode):
    """Answers what a mask picks out of fake tensors, which have no values: everything.

    A plan's sequences are full, and it knows of no prompt whose tokens have no part in the loss. What torch on a GPU
    finds of a mask first, the places where it is true, is allocated here too.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is ATEN.masked_select.default:
            return args[0].new_empty((args[1].numel(),))
        if func is ATEN.index.Tensor or func in WRITES_AT_INDICES:
            args = (args[0], _true_places(args[1]), *args[2:])
        return func(*args, **(kwargs or {}))


def _true_places(indices: Any) -> list[torch.Tensor | None]:
    """Return indices with each mask as the places where it is true, a list of them for each of its dimensions."""
    found: list[torch.Tensor | None] = []
    for index in indices:
        is_mask = index is not None and index.dtype in (torch.bool, torch.uint8)
        found += index.new_empty((index.dim(), index.numel()), dtype=torch.int64).unbind(0) if is_mask else [index]
    return found


class _InPlace:
    """A kernel that writes where it is told to, and allocates nothing."""

    def __getitem__(self, _grid: Any) -> Any:
        return _write


def _write(*_tensors: Any, **_settings: Any) -> None:
    """Change values, which a fake tensor does not have."""


class _Triton:
    """The part of Triton that its callers reckon with."""

    @staticmethod
    def cdiv(amount: int, part: int) -> int:
        """Return how many parts there are, the last perhaps smaller."""
        return -(-amount // part)


@contextlib.contextmanager
def _kernels_of_a_gpu() -> Iterator[None]:
    """Let TRL take the way of GPUs: Triton's kernels over tiles, and cuBLAS adding up 16-bit products in fp32."""
    from trl.kernels import chunked_logprob
    from trl.trainer import utils

    kernels = {"_forward_kernel": _InPlace(), "_backward_kernel": _InPlace(), "triton": _Triton}
    with (
        names_given(chunked_logprob, _addmm_fp32=_write, **kernels),
        replaced(chunked_logprob, "_use_triton", lambda _device: True),
        replaced(utils, "_use_triton", lambda _device: True),
    ):
        yield
