"""Megatron-Core's token dispatcher on fake tensors: which expert gets how many tokens, without looking at any.

Every expert gets as many as another; what does not divide goes to some of them one by one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from plimsoll.service.worker.recording.patches import replaced
from plimsoll.service.worker.training.foreign_code import names_given


class _Selected(torch.autograd.Function):
    """So many of a matrix's elements as a mask chooses; keeps both, as torch's `masked_select` does."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, mask: torch.Tensor, chosen: int) -> torch.Tensor:
        """Return the chosen elements."""
        ctx.save_for_backward(values, mask)
        return values.new_empty(chosen)

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Return a gradient that is zero where nothing was chosen."""
        return torch.zeros_like(ctx.saved_tensors[0]), None, None


class ChosenByMask(TorchFunctionMode):
    """Lets a mask [experts, tokens] choose as many elements as every token has experts."""

    def __init__(self, experts_per_token: int) -> None:
        super().__init__()
        self._experts_per_token = experts_per_token

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.masked_select:
            values, mask = args
            return _Selected.apply(values, mask, mask.size(1) * self._experts_per_token)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def tokens_shared_out(experts_per_token: int) -> Iterator[None]:
    """Give every dispatcher its counts of tokens where it would copy them from the device."""
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

    with (
        replaced(MoEAlltoAllTokenDispatcher, "_maybe_dtoh_and_synchronize", _counted),
        names_given(moe_utils, te_general_gemm=_router_product),
        ChosenByMask(experts_per_token),
    ):
        yield


def _router_product(
    first: torch.Tensor, second: torch.Tensor, dtype: torch.dtype, *, layout: str, **_kinds: Any
) -> tuple[torch.Tensor]:
    """Return a product in a format of its own, of matrices each of which is transposed or not (`general_gemm`).

    Source: Transformer Engine, pytorch/cpp_extensions/gemm.py: operands are as a column-major library has them.
    """
    columns = first.size(0) if layout[0] == "T" else first.size(1)
    rows = second.size(1) if layout[1] == "T" else second.size(0)
    return (second.new_empty(rows, columns, dtype=dtype),)


def _counted(dispatcher: Any, point: str, tokens_per_expert: Any = None) -> Any:
    """Set a dispatcher's counts at the point at which it copies them; return those of this rank's experts."""
    if point != dispatcher.cuda_dtoh_point:
        return tokens_per_expert
    each = _even_counts(dispatcher.num_out_tokens, dispatcher.num_experts)
    own = each[dispatcher.local_expert_indices]
    sources = dispatcher.tp_size * dispatcher.ep_size
    if sources > 1:
        dispatcher.input_splits = each.reshape(dispatcher.ep_size, -1).sum(axis=1)
        dispatcher.output_splits = np.full(dispatcher.ep_size, own.sum())
        dispatcher.output_splits_tp = np.full(dispatcher.tp_size, dispatcher.output_splits.sum())
    chunks = np.arange(sources * len(own)).reshape(sources, -1)
    dispatcher.num_global_tokens_per_local_expert = np.tile(own, (sources, 1))
    dispatcher.sort_input_by_local_experts = chunks.T.ravel()
    dispatcher.restore_output_by_local_experts = chunks.reshape(len(own), sources).T.ravel()
    return own * sources


def _even_counts(tokens: int, experts: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return how many of the tokens each expert gets."""
    bounds = np.arange(experts + 1) * tokens // experts
    return np.diff(bounds)
