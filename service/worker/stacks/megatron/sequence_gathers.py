"""Matrices over a split sequence that keep a rank's own tokens, and gather the others' again in the backward pass.

Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2 ("we ... perform an extra all-gather in the backward
pass"); Megatron-Core, tensor_parallel/layers.py, `LinearWithGradAccumulationAndAsyncCommunication`.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import nn
from torch.distributed._functional_collectives import all_gather_single
from torch.distributed.tensor import DTensor, Partial, Shard

from plimsoll.service.worker.recording.tracker import local_tensor


class GatheredAgain(torch.autograd.Function):
    """`gathered` [batch, sequence, features] times `weight` [outputs, features]: keeps `own`, this rank's part."""

    @staticmethod
    def forward(ctx: Any, gathered: torch.Tensor, own: torch.Tensor, weight: torch.Tensor, group: Any) -> torch.Tensor:
        """Return the product, and keep the rank's own tokens and the weight."""
        ctx.save_for_backward(own, weight)
        ctx.group = group
        return gathered @ weight.t()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, torch.Tensor, None]:
        """Return the gradients of the gathered input and of the weight."""
        own, weight = ctx.saved_tensors
        of_gathered = gradients[0] @ weight
        # Tokens first, as Megatron holds them: then gathering copies nothing.
        gathered = all_gather_single(own.transpose(0, 1).contiguous(), 0, ctx.group).transpose(0, 1)
        of_weight = gradients[0].flatten(0, 1).t() @ gathered.flatten(0, 1)
        return of_gathered, None, of_weight, None


class OwnTokens:
    """What a rank itself has of the input of a module that works on the whole sequence."""

    def __init__(self) -> None:
        self.latest: torch.Tensor | None = None

    def remember(self, _module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Take note of the input before it is gathered: a hook before the module's own."""
        hidden = inputs[0] if inputs else named["hidden_states"]
        self.latest = local_tensor(hidden.detach())

    def forget(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        """Let go of it once the module is done: what the backward pass needs is kept for it."""
        self.latest = None

    def product(self, linear: nn.Linear, gathered: DTensor) -> DTensor:
        """Return what a linear layer split by columns makes of the gathered input."""
        if self.latest is None:
            raise RuntimeError("A linear layer was called before the module that it is part of.")
        weight: Any = linear.weight
        mesh = weight.device_mesh
        whole = gathered.to_local(grad_placements=[Partial()])
        group = mesh.get_group()
        output: torch.Tensor = GatheredAgain.apply(whole, self.latest, weight.to_local(), group)  # type: ignore[no-untyped-call]
        bias: Any = linear.bias
        if bias is not None:
            output = output + bias.to_local()
        return DTensor.from_local(output, mesh, [Shard(-1)], run_check=False)


def gather_again(model: Any) -> None:
    """Make every matrix of a Llama-like model that is split by columns gather its input a second time."""
    for layer in model.model.layers:
        attention, feed_forward = layer.self_attn, layer.mlp
        _gather_again_in(attention, (attention.q_proj, attention.k_proj, attention.v_proj))
        if not hasattr(feed_forward, "experts"):
            _gather_again_in(feed_forward, (feed_forward.gate_proj, feed_forward.up_proj))
    if isinstance(model.lm_head, nn.Linear):
        _gather_again_in(model.lm_head, (model.lm_head,))


def _gather_again_in(module: nn.Module, linears: tuple[nn.Linear, ...]) -> None:
    own = OwnTokens()

    def forward(linear: nn.Linear, gathered: DTensor) -> DTensor:
        return own.product(linear, gathered)

    module.register_forward_pre_hook(own.remember, prepend=True, with_kwargs=True)
    module.register_forward_hook(own.forget)
    for linear in linears:
        linear.forward = types.MethodType(forward, linear)  # type: ignore[method-assign]
