"""Activation checkpointing: which layers throw away what until the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from service.worker.dry_run.stacks import SelectiveRecompute


def recompute_activations(model: Any, mode: str, *, layers: int | None, selective: SelectiveRecompute) -> None:
    """Wrap the model's decoder layers for recomputation.

    `layers` limits full recomputation to the first so many, as Megatron's block
    method does.
    """
    stack: nn.ModuleList = model.model.layers
    if mode == "none":
        return
    for index, layer in enumerate(stack):
        if mode == "full":
            if layers is None or index < layers:
                stack[index] = checkpoint_wrapper(layer, preserve_rng_state=False)
        elif selective is SelectiveRecompute.OPERATIONS:
            stack[index] = checkpoint_wrapper(layer, preserve_rng_state=False, context_fn=_operation_contexts)
        else:
            _recompute_attention(model)
            return


def _operation_contexts() -> Any:
    """Return contexts that keep what torchtitan keeps: attention, reduce-scatters, every other matrix product.

    Source: torchtitan, distributed/activation_checkpoint.py (`_op_sac_save_list`).
    """
    kept = {
        torch.ops.aten.mm.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops._c10d_functional.reduce_scatter_tensor.default,
    }
    products_seen = {False: 0, True: 0}

    def policy(context: Any, operation: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        is_product = operation is torch.ops.aten.mm.default
        products_seen[context.is_recompute] += is_product
        is_skipped_product = is_product and products_seen[context.is_recompute] % 2 == 0
        if operation in kept and not is_skipped_product:
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]


def _recompute_attention(model: Any) -> None:
    """Checkpoint the inner product alone: query, key and value stay, scores and output are made again."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    inner: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS.get_interface(
        model.config._attn_implementation, _eager_attention(model)
    )

    def checkpointed(module: nn.Module, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
        def run(query: Any, key: Any, value: Any) -> Any:
            return inner(module, query, key, value, mask, **kwargs)

        return checkpoint(run, query, key, value, use_reentrant=False, preserve_rng_state=False)

    name = f"{model.config._attn_implementation}_recomputed"
    _register_like(name, model.config._attn_implementation, checkpointed)
    model.config._attn_implementation = name


def _eager_attention(model: Any) -> Callable[..., Any]:
    import sys

    modeling = sys.modules[type(model).__module__]
    function: Callable[..., Any] = modeling.eager_attention_forward
    return function


def _register_like(name: str, like: str, function: Callable[..., Any]) -> None:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(name, function)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, ALL_MASK_ATTENTION_FUNCTIONS[like])
