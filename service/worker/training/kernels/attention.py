"""Attention as a CUDA device would run it, registered with transformers.

On fake CPU tensors `scaled_dot_product_attention` would choose a CPU kernel, and
transformers would build a mask and copy keys and values for it. Calling torch's
flash operator itself keeps exactly what the CUDA kernel keeps for the backward
pass: query, key, value and output, the log-sum-exp in fp32 and a random state.
Keys and values stay grouped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor

from plimsoll.planners.ground.errors import NotYetAvailable

# The name must not contain "flash": transformers would then look for the
# flash-attn package.
TRACED_ATTENTION = "plimsoll_traced"


def register_traced_attention() -> None:
    """Make `TRACED_ATTENTION` known to transformers."""
    register_attention(TRACED_ATTENTION, traced_attention)


def register_attention(name: str, attention: Callable[..., Any]) -> None:
    """Make a function known to transformers by a name that must not contain "flash"; it needs no mask."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(name, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, lambda *_args, **_kwargs: None)


def traced_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Return the attention's output [batch, sequence, heads, head_dim], and no weights.

    `query`, `key`, `value` are [batch, heads, sequence, head_dim], keys and values
    with their own number of heads; values may be of another head_dim, as latent
    attention's are. `s_aux` are logits, one a head, that a head may attend to in place of a token: the kernel reads
    them, keeps nothing more, and gives them a gradient. Windows and caps on the scores are the kernel's alone too
    (Dao-AILab/flash-attention, flash_attn_interface.py, `FlashAttnFunc`: what it saves does not depend on them).
    Raises `NotYetAvailable` for a mask.
    """
    query, key, value = (_own_heads(tensor) for tensor in (query, key, value))
    device_type = query.device.type
    if torch.is_autocast_enabled(device_type):
        # Autocast lowers scaled_dot_product_attention; the operator beneath it is not on its list.
        query, key, value = (tensor.to(torch.get_autocast_dtype(device_type)) for tensor in (query, key, value))
    if attention_mask is not None:
        raise NotYetAvailable(f"{type(module).__name__} needs a mask; only causal attention is traced.")
    if query.dtype is torch.float32 or query.size(-1) != value.size(-1):
        return _memory_efficient(query, key, value, dropout, scaling).transpose(1, 2).contiguous(), None
    output = _flash_operator(query)(query, key, value, dropout, True, scale=scaling)[0]
    if s_aux is not None:
        output = _Sinks.apply(output, s_aux)  # type: ignore[no-untyped-call]
    return output.transpose(1, 2).contiguous(), None


def _own_heads(tensor: torch.Tensor) -> torch.Tensor:
    """Return a rank's own heads, of which its kernel alone knows."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class _Sinks(torch.autograd.Function):
    """The attention's output as it is, and a gradient for the sinks."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
        """Return the output."""
        ctx.sinks_shape, ctx.sinks_dtype = sinks.shape, sinks.dtype
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output's gradient, and one of the sinks' shape."""
        return gradient, gradient.new_zeros(ctx.sinks_shape, dtype=ctx.sinks_dtype)


def _flash_operator(query: torch.Tensor) -> Any:
    """Return the flash kernel's operator: the CUDA kernel's, of which fake tensors know the shapes, or the CPU's.

    They keep alike, but for the state of random numbers, which the CPU's has not.
    """
    if query.is_cpu and not isinstance(query, FakeTensor):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return torch.ops.aten._scaled_dot_product_flash_attention


def _memory_efficient(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float, scaling: float | None
) -> torch.Tensor:
    """Return attention by the next kernel in line, which copies grouped heads.

    CUDA's flash kernel takes 16 bits only, and values of no other head_dim than the keys'
    (torch, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, `can_use_flash_attention`).
    """
    groups = query.size(1) // key.size(1)
    if groups > 1:
        key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    if query.is_cpu and not isinstance(query, FakeTensor):
        # It has no kernel there, and the CPU's flash kernel takes 32 bits.
        if query.size(-1) != value.size(-1):
            raise NotYetAvailable("Values of another head dimension than the keys' do not run on a CPU yet.")
        return _flash_operator(query)(query, key, value, dropout, True, scale=scaling)[0]  # type: ignore[no-any-return]
    output: torch.Tensor = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, None, True, dropout, True, scale=scaling
    )[0]
    return output
