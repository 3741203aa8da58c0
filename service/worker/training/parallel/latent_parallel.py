"""Tensor and sequence parallelism of latent attention, as DTensor.

Source: pytorch/torchtitan, models/deepseek_v3/infra/parallelize.py, `apply_non_moe_tp`, and models/deepseek_v3/model,
`Attention.forward`: the down projections and the latents' norms stand whole on every rank and see the whole sequence
(`NoParallel`), the up projections are split by head, and the kernel gets a rank's own heads as plain tensors. Between
them everything is a DTensor, so that the shared rotary key's gradient is summed over the ranks.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, PrepareModuleInput, RowwiseParallel
from torch.utils._pytree import tree_map

# transformers' names: matrices and norms that every rank has whole, and matrices that are split by head.
WHOLE = ("q_a_proj", "q_a_layernorm", "kv_a_proj_with_mqa", "kv_a_layernorm")
BY_HEAD = ("q_proj", "q_b_proj", "kv_b_proj")
SEQUENCE_DIM = 1


class Unsplit(ParallelStyle):
    """A module that every rank has whole and runs on the whole input (torchtitan's `NoParallel`)."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh)


def is_latent(layer: Any) -> bool:
    """Return whether a decoder layer's keys and values are rebuilt from a latent."""
    return hasattr(layer.self_attn, "kv_b_proj")


def latent_plan(attention: nn.Module) -> dict[str, ParallelStyle]:
    """Return how the parts of a layer's attention are parallel; only a split sequence is known."""
    held = {name for name, module in attention.named_children() if module is not None}
    return {
        "self_attn": PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": Shard(SEQUENCE_DIM)},
            desired_input_kwarg_layouts={"hidden_states": Replicate()},
        ),
        **{f"self_attn.{name}": Unsplit() for name in WHOLE if name in held},
        **{f"self_attn.{name}": ColwiseParallel(use_local_output=False) for name in BY_HEAD if name in held},
        "self_attn.o_proj": RowwiseParallel(output_layouts=Shard(SEQUENCE_DIM)),
    }


def keep_distributed(attention: Any, mesh: DeviceMesh) -> None:
    """Let a layer's attention work on DTensors between its projections and its kernel."""

    def with_angles(_module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        angles = named["position_embeddings"]  # cosines and sines, or one tensor of complex numbers
        whole = tree_map(lambda each: DTensor.from_local(each, mesh, [Replicate()], run_check=False), angles)
        return inputs, named | {"position_embeddings": whole}

    attention.register_forward_pre_hook(with_angles, with_kwargs=True)
    attention.expand_kv = types.MethodType(_keys_and_values, attention)


def _keys_and_values(attention: Any, latent: torch.Tensor, rotary: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values [batch, heads, sequence, features] from the latent and the shared rotary key.

    transformers writes keys into an empty tensor, which a DTensor would make of all heads; torchtitan concatenates.
    """
    batch, _, length, _ = latent.shape
    widths = [attention.qk_nope_head_dim, attention.v_head_dim]
    written = attention.kv_b_proj(latent).view(batch, length, -1, sum(widths)).transpose(1, 2)
    without_position, value = torch.split(written, widths, dim=-1)
    shared = rotary.expand(-1, without_position.shape[1], -1, -1)
    return torch.cat((without_position, shared), dim=-1), value
