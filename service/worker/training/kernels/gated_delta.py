"""Kernels of the gated delta rule, by shapes: what flash-linear-attention and causal-conv1d make, keep and let go of.

transformers calls them where they are installed, which needs a GPU, and else goes through chunks in a loop of its own.

Source: fla-org/flash-linear-attention 0.6.0, ops/gated_delta_rule/chunk.py (`ChunkGatedDeltaRuleFunction`),
chunk_fwd.py and wy_fast.py there, ops/common/chunk_delta_h.py and chunk_o.py, modules/norm/l2norm.py;
Dao-AILab/causal-conv1d 1.5, causal_conv1d_interface.py (`CausalConv1dFn`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from plimsoll.planners.families.family import Tracing
from plimsoll.service.worker.recording.patches import models_calling

CHUNK_TOKENS = 64
# Tiles of a key's features that each add up a part of the decay's gradient (ops/common/chunk_o.py, CONST_TILING).
KEY_TILE = 128


def gated_delta_kernels(tracing: Tracing) -> AbstractContextManager[None]:
    """Let transformers' code of a family call these kernels; nothing where it has no gated delta rule."""
    return models_calling(
        tracing.gated_delta_module,
        torch_chunk_gated_delta_rule=chunk_gated_delta_rule,
        causal_conv1d_fn=causal_conv1d,
    )


def chunk_gated_delta_rule(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, g: torch.Tensor, beta: torch.Tensor, **_: Any
) -> tuple[torch.Tensor, None]:
    """Return the output [batch, sequence, value heads, value features], and no state."""
    output: torch.Tensor = ChunkedGatedDelta.apply(query, key, value, g, beta)  # type: ignore[no-untyped-call]
    return output, None


def causal_conv1d(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,  # noqa: ARG001 - transformers' call
    **_: Any,
) -> torch.Tensor:
    """Return the convolution of `hidden_states` [batch, channels, sequence], activated in place."""
    output: torch.Tensor = CausalConvolution.apply(hidden_states, weight, bias)  # type: ignore[no-untyped-call]
    return output


class CausalConvolution(torch.autograd.Function):
    """A causal convolution of every channel, and its activation."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return the activated convolution, and keep the input."""
        ctx.save_for_backward(inputs, weight, bias)
        return torch.empty_like(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return the input's gradient and the weights', which are added up in fp32."""
        inputs, weight, bias = ctx.saved_tensors
        gradient = gradients[0]
        if gradient.stride(1) != 1 and gradient.stride(2) != 1:
            gradient = gradient.contiguous()
        of_weight = torch.zeros_like(weight, dtype=torch.float32)
        of_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        of_inputs = torch.empty_like(inputs)
        return of_inputs, of_weight.to(weight.dtype), None if of_bias is None else of_bias.to(bias.dtype)


class ChunkedGatedDelta(torch.autograd.Function):
    """The gated delta rule in chunks, queries and keys [batch, sequence, key heads, features] normed within."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor
    ) -> torch.Tensor:
        """Return the output; keep normed queries and keys, values, decay, strength and the chunks' matrices."""
        # Copies of what is a view of a wider tensor stay through the pass.
        whole_query, whole_key, value, whole_decay, beta = (
            each.contiguous() for each in (query, key, value, decay, beta)
        )
        query, query_scale = _normed(whole_query)
        key, key_scale = _normed(whole_key)
        decay = torch.empty_like(whole_decay)  # its sums within a chunk
        matrices = key.new_zeros(*beta.shape, CHUNK_TOKENS)
        written, read = _written_and_read(key, value)
        states, new_values = _states(key, value), torch.empty_like(read)
        output = torch.empty_like(new_values)
        del written, read, states, new_values
        ctx.save_for_backward(query, query_scale, key, key_scale, value, decay, beta, matrices)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the gradients of all that came, from states and values that are made again."""
        query, _, key, _, value, decay, beta, _ = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        written, read = _written_and_read(key, value)
        states, new_values = _states(key, value), torch.empty_like(read)
        of_local_values = torch.empty_like(gradient)
        of_states, of_new_values = _states(key, value), torch.empty_like(of_local_values)
        del of_local_values
        of_query, of_key, of_decay, of_written = _of_queries_and_keys(query, key, decay, written)
        of_key_again, of_value = _of_each_head(key, value), torch.empty_like(value)
        of_decay_again, of_strength = torch.empty_like(decay), torch.empty_like(beta)
        of_key_again = _of_shared_heads(of_key_again, key)
        of_key.add_(of_key_again)
        of_decay.add_(of_decay_again)
        of_decay = torch.empty_like(of_decay)  # its sums within a chunk
        del written, read, states, new_values, of_states, of_new_values, of_written
        of_query, of_key = torch.empty_like(of_query), torch.empty_like(of_key)
        return of_query, of_key, of_value, of_decay, of_strength


def _normed(features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(features), features.new_empty(features.shape[:-1], dtype=torch.float32)


def _of_each_head(key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return a tensor as wide as keys, of every value head."""
    return key.new_empty(*value.shape[:-1], key.shape[-1])


def _written_and_read(key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _of_each_head(key, value), torch.empty_like(value)


def _states(key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return a matrix for each value head at the beginning of each chunk."""
    batch, length, heads, features = value.shape
    return key.new_empty(batch, -(-length // CHUNK_TOKENS), heads, key.shape[-1], features)


def _of_queries_and_keys(
    query: torch.Tensor, key: torch.Tensor, decay: torch.Tensor, written: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of queries, keys, decay and of what is written, those of heads that share a key summed."""
    of_query, of_key = torch.empty_like(written), torch.empty_like(written)
    of_decay = decay.new_empty(-(-key.shape[-1] // KEY_TILE), *decay.shape)
    of_written = torch.empty_like(written)
    of_query, of_key = _of_shared_heads(of_query, query), _of_shared_heads(of_key, key)
    return of_query, of_key, of_decay.sum(0), of_written


def _of_shared_heads(of_each: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    heads, value_heads = shared.shape[2], of_each.shape[2]
    if heads == value_heads:
        return of_each
    return of_each.view(*shared.shape[:3], value_heads // heads, shared.shape[-1]).sum(3)
