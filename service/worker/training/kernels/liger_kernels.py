"""What Liger's kernels allocate, keep and write over, in place of transformers' separate operations.

Each function makes the tensors that its kernel makes, saves what it saves, and gives
for gradients the storages that it writes them into. Of real tensors the values are
computed too, with gradients in tensors of their own.

Source: linkedin/Liger-Kernel 0.8.5, `ops/rms_norm.py` (`rms_norm_backward`: the gradient
over the one that came, that of the weight in a row for each multiprocessor),
`ops/swiglu.py` and `ops/geglu.py` (gradients over both kept inputs), `ops/rope.py`
(rotates queries and keys where they lie), `ops/cross_entropy.py` (turns the logits into
their gradient), `transformers/monkey_patch.py` (what is put where).
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import nn

from plimsoll.planners.families import traits
from plimsoll.planners.families.family import Liger
from plimsoll.service.worker.training.kernels.in_place_loss import InPlaceCrossEntropy
from plimsoll.service.worker.training.kernels.rms_norm import has_values, normed, normed_gradients

# Streaming multiprocessors of an H100 SXM (NVIDIA H100 white paper, table 2); an H200 has as many.
MULTIPROCESSORS = 132
IGNORED_LABEL = -100  # torch's default


class LigerRmsNorm(torch.autograd.Function):
    """RMSNorm of `hidden` [..., features], scaled by the weight and an offset."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, offset: float, in_place: bool) -> torch.Tensor:
        """Return the output, and keep input, weight and one fp32 statistic a token."""
        hidden = hidden.contiguous()
        if has_values(hidden):
            output, statistic = normed(hidden, weight + offset)
        else:
            output, statistic = torch.empty_like(hidden), torch.empty(hidden.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(hidden, weight, statistic)
        ctx.offset, ctx.in_place = offset, in_place
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradient of the input, over the one that came, and that of a weight that learns."""
        hidden, weight, statistic = ctx.saved_tensors
        gradient, learns = gradients[0].contiguous(), ctx.needs_input_grad[1]
        if has_values(hidden):
            of_hidden, of_weight = normed_gradients(gradient, hidden, weight + ctx.offset, statistic)
            return of_hidden, of_weight if learns else None, None, None
        rows = torch.empty(MULTIPROCESSORS, weight.numel(), dtype=torch.float32) if learns else None
        of_hidden = gradient if ctx.in_place else torch.zeros_like(gradient)
        return of_hidden, None if rows is None else rows.sum(dim=0).to(weight.dtype), None, None


class LigerGatedActivation(torch.autograd.Function):
    """SiLU, or GELU by its tanh, of the gate times up."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor, is_silu: bool) -> torch.Tensor:
        """Return the product, and keep both inputs; halves of one tensor are copied."""
        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up)
        ctx.is_silu = is_silu
        return _activated(gate, is_silu=is_silu).mul_(up) if has_values(gate) else torch.empty_like(gate)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Return both gradients, over the inputs that were kept."""
        gate, up = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        if not has_values(gate):
            return gate, up, None
        of_product = gradient * up
        of_gate = (
            torch.ops.aten.silu_backward(of_product, gate)
            if ctx.is_silu
            else torch.ops.aten.gelu_backward(of_product, gate, approximate="tanh")
        )
        return of_gate, _activated(gate, is_silu=ctx.is_silu).mul_(gradient), None


class LigerRotation(torch.autograd.Function):
    """Rotation of queries and keys [batch, heads, sequence, head_dim] by angles [batch or 1, sequence, rotated]."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both, rotated where they lie if tokens lie before heads, and keep the angles."""
        cosine, sine = cosine.contiguous(), sine.contiguous()
        ctx.save_for_backward(cosine, sine)
        return _rotated(query, cosine, sine), _rotated(key, cosine, sine)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        """Return both gradients, rotated back where they lie."""
        cosine, sine = ctx.saved_tensors
        of_query, of_key = (_rotated(gradient, cosine, -sine) for gradient in gradients)
        return of_query, of_key, None, None


def put_liger_kernels(model: Any) -> None:
    """Give a transformers model Liger's norms, gated activation, rotation and cross-entropy."""
    tracing = traits(model.config.model_type).tracing
    family = (tracing and tracing.liger) or Liger()

    def norm(self: Any, hidden_states: torch.Tensor) -> Any:
        return LigerRmsNorm.apply(hidden_states, self.weight, family.norm_offset, family.norms_in_place)  # type: ignore[no-untyped-call]

    for module in model.modules():
        kind = type(module).__name__
        if kind.endswith("RMSNorm"):
            module.forward = types.MethodType(norm, module)
        elif kind.endswith("MLP"):
            module.forward = types.MethodType(_feed_forward, module)
        elif kind.endswith("Attention"):
            module.forward = types.MethodType(_with_rotation(type(module).forward), module)
    model.loss_function = liger_loss


def liger_loss(logits: torch.Tensor, labels: torch.Tensor, **_settings: Any) -> Any:
    """Return the mean loss of logits [batch, sequence, vocabulary] against the labels of the tokens that follow.

    Source: transformers 5.23, loss/loss_utils.py, `ForCausalLMLoss`, which casts the logits to fp32.
    """
    following = nn.functional.pad(labels, (0, 1), value=IGNORED_LABEL)[..., 1:].contiguous()
    return InPlaceCrossEntropy.apply(  # type: ignore[no-untyped-call]
        logits.float().flatten(0, 1), following.flatten()
    )


def _feed_forward(self: Any, x: torch.Tensor) -> Any:
    if hasattr(self, "gate_up_proj"):
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
    else:
        gate, up = self.gate_proj(x), self.up_proj(x)
    is_silu = self.config.hidden_act in ("silu", "swish")
    return self.down_proj(LigerGatedActivation.apply(gate, up, is_silu))  # type: ignore[no-untyped-call]


def _with_rotation(forward: types.FunctionType) -> types.FunctionType:
    """Return the same function with Liger's rotation for transformers', which it calls by its name."""
    names = forward.__globals__ | {"apply_rotary_pos_emb": LigerRotation.apply}
    function = types.FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    function.__kwdefaults__ = forward.__kwdefaults__
    return function


def _activated(gate: torch.Tensor, *, is_silu: bool) -> torch.Tensor:
    return nn.functional.silu(gate) if is_silu else nn.functional.gelu(gate, approximate="tanh")


def _rotated(heads_first: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Return states [batch, heads, sequence, head_dim], the first features of each head rotated in their storage."""
    states = heads_first.transpose(1, 2).contiguous()
    if has_values(states):
        half = cosine.shape[-1] // 2
        first, second = states[..., :half], states[..., half : 2 * half]
        along, across = cosine[..., None, :half], sine[..., None, :half]
        turned = first * along - second * across
        second.mul_(along).add_(first * across)
        first.copy_(turned)
    return states.transpose(1, 2)
