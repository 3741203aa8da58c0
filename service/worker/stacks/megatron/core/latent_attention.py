"""What latent attention has of Transformer Engine and Triton beneath Megatron-Core's own layers, by shape.

Source: Megatron-Core 0.16.1, transformer/multi_latent_attention.py, fusions/fused_mla_yarn_rope_apply.py; Transformer
Engine, pytorch: attention/dot_product_attention/utils.py (`get_attention_backend`: no FlashAttention 2 where keys and
values have other lengths, and cuDNN's kernel first from Hopper on) and backends.py (`FusedAttention`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from plimsoll.service.worker.recording.patches import replaced
from plimsoll.service.worker.stacks.megatron.core.kernels import Norm, Whole
from plimsoll.service.worker.training.foreign_code import names_given

ROTATIONS = ("rotary_fwd_q_kernel", "rotary_bwd_q_kernel", "rotary_fwd_kv_kernel", "rotary_bwd_kv_kernel")


class _InPlace:
    """A Triton kernel that writes where it is told to, and allocates nothing."""

    def __getitem__(self, _grid: Any) -> Any:
        return lambda *_operands: None


class LatentCoreAttention(nn.Module):
    """cuDNN's attention of [sequence, batch, heads, head_dim], whose values have another length than its keys."""

    def __init__(self, **_settings: Any) -> None:
        super().__init__()

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_masks: Any, **_kinds: Any
    ) -> torch.Tensor:
        """Return the output [sequence, batch, heads x head_dim]."""
        output: torch.Tensor = _FusedAttention.apply(query, key, value)  # type: ignore[no-untyped-call]
        return output.flatten(2)


class _FusedAttention(torch.autograd.Function):
    """Attention that keeps its operands, its output and one fp32 statistic a token and head."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return the output."""
        tokens, batch, heads = query.shape[:3]
        output = query.new_empty(tokens, batch, heads, value.size(-1))
        statistics = query.new_empty(batch, heads, tokens, 1, dtype=torch.float32)
        ctx.save_for_backward(query, key, value, output, statistics)
        return output

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the operands' gradients."""
        query, key, value, *_ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


@contextlib.contextmanager
def latent_attention_in_place() -> Iterator[None]:
    """Let Megatron-Core's latent attention find the matrix that every rank has whole, and its rotation's kernels."""
    from megatron.core.fusions import fused_mla_yarn_rope_apply as rotation
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.transformer import multi_latent_attention

    with contextlib.ExitStack() as stack:
        for name in ROTATIONS:
            stack.enter_context(replaced(rotation, name, _InPlace()))
        # A grid is asked for how many blocks it has of a size that Triton tries.
        stack.enter_context(replaced(rotation, "triton", SimpleNamespace(cdiv=lambda *_sizes: 1)))
        stack.enter_context(names_given(multi_latent_attention, TELinear=Whole))
        stack.enter_context(names_given(gpt_layer_specs, TENorm=Norm))
        yield
