"""Tensor and sequence parallelism of a Llama-like model, as DTensor.

Source: torchtitan's Llama 3 plan and torch's tensor parallel tutorial: column for
the first matrices, row for the second, the vocabulary over the ranks, and with
sequence parallelism the norms and the residual stream split by token
(Korthikanti et al. 2022, arXiv:2205.05198).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from plimsoll.service.worker.training.parallel.adapter_parallel import with_adapters
from plimsoll.service.worker.training.parallel.experts import has_dispatcher
from plimsoll.service.worker.training.parallel.latent_parallel import is_latent, keep_distributed, latent_plan
from plimsoll.service.worker.training.parallel.mixture_parallel import compute_own_parts, is_mixture, mixture_plan

SEQUENCE_DIM = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerStyles:
    """How a layer's first matrices, its last ones and the inputs of its halves are parallel."""

    column: Callable[..., ParallelStyle] = ColwiseParallel
    row: Callable[..., ParallelStyle] = RowwiseParallel
    module_input: Callable[..., ParallelStyle] = PrepareModuleInput


def split_over_tensor_ranks(
    model: Any, mesh: DeviceMesh, *, sequence_parallel: bool, gather_logits: bool, styles: LayerStyles
) -> None:
    """Split every matrix of the model over the mesh, those of its layers in `styles`.

    With `gather_logits` every rank holds the logits of the whole vocabulary;
    without it they stay split, as a DTensor, for a loss that is parallel too.
    """
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    residual = Shard(SEQUENCE_DIM) if sequence_parallel else Replicate()
    plan: dict[str, Any] = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=residual),
        "lm_head": ColwiseParallel(
            input_layouts=residual,
            output_layouts=Replicate() if gather_logits else Shard(-1),
            use_local_output=gather_logits,
        ),
    }
    if sequence_parallel:
        plan["model.norm"] = SequenceParallel()
    held = {name for name, module in model.named_modules() if not isinstance(module, nn.Identity)}
    parallelize_module(model, mesh, {name: style for name, style in plan.items() if name in held})
    if any(is_mixture(layer) and not has_dispatcher(layer) for layer in model.model.layers):
        compute_own_parts(model)
    for layer in model.model.layers:
        plan = _layer_plan(styles, sequence_parallel=sequence_parallel)
        if is_latent(layer):
            plan = {name: style for name, style in plan.items() if not name.startswith("self_attn")}
            plan |= latent_plan(layer.self_attn)
            keep_distributed(layer.self_attn, mesh)
        if is_mixture(layer):
            plan = {name: style for name, style in plan.items() if not name.startswith("mlp")}
            plan |= {} if has_dispatcher(layer) else mixture_plan(layer.mlp)
        parallelize_module(layer, mesh, with_adapters(plan, layer, residual))
    for name, parameter in model.named_parameters():
        if name in frozen:  # SequenceParallel makes a norm's weight anew, and lets it learn
            parameter.requires_grad_(False)


def _layer_plan(styles: LayerStyles, *, sequence_parallel: bool) -> dict[str, Any]:
    residual = Shard(SEQUENCE_DIM) if sequence_parallel else Replicate()
    plan: dict[str, Any] = {
        **{f"self_attn.{name}_proj": styles.column() for name in "qkv"},
        "self_attn.o_proj": styles.row(output_layouts=residual),
        "mlp.gate_proj": styles.column(),
        "mlp.up_proj": styles.column(),
        "mlp.down_proj": styles.row(output_layouts=residual),
    }
    if sequence_parallel:
        plan |= {
            "input_layernorm": SequenceParallel(),
            "post_attention_layernorm": SequenceParallel(),
            "self_attn": styles.module_input(
                input_kwarg_layouts={"hidden_states": Shard(SEQUENCE_DIM)},
                desired_input_kwarg_layouts={"hidden_states": Replicate()},
            ),
            "mlp": styles.module_input(input_layouts=(Shard(SEQUENCE_DIM),), desired_input_layouts=(Replicate(),)),
        }
    return plan
