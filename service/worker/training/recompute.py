"""Activation checkpointing: which layers throw away what until the backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from plimsoll.planners.jobs.recompute_modules import CORE_ATTENTION
from plimsoll.service.worker.jobs.job import FEED_FORWARD, LAYER_NORM, TraceJob
from plimsoll.service.worker.jobs.stack import SelectiveRecompute, Stack
from plimsoll.service.worker.training.decoder_parts import decoder_layers
from plimsoll.service.worker.training.discarded_outputs import discard_output


def recompute_activations(model: Any, job: TraceJob, stack: Stack) -> None:
    """Wrap what of the model's decoder layers is computed again."""
    layers, wrap = decoder_layers(model), _wrapping(stack)
    if job.recompute == "full":
        for index in recomputed_layers(len(layers), job):
            layers[index] = wrap(layers[index])
    elif job.recompute == "selective" and job.recompute_modules:
        _recompute_modules(model, job.recompute_modules)
    elif job.recompute == "selective" and stack.selective is SelectiveRecompute.OPERATIONS:
        for index, layer in enumerate(layers):
            layers[index] = wrap(layer, context_fn=functools.partial(_operation_contexts, _router_shape(layer)))
    elif job.recompute == "selective":
        _recompute_attention(model)


def _wrapping(stack: Stack) -> Callable[..., nn.Module]:
    return functools.partial(checkpoint_wrapper, preserve_rng_state=False, early_stop=not stack.recomputes_to_the_end)


def recomputed_layers(layers: int, job: TraceJob) -> range:
    """Return which of a stage's layers are computed again as a whole.

    The first so many, as Megatron's block method has it, or every so-manieth
    (torchtitan, distributed/activation_checkpoint.py, `_apply_layer_sac`).
    """
    if job.recompute_every is not None:
        return range(job.recompute_every - 1, layers, job.recompute_every)
    return range(layers if job.recompute_layers is None else min(job.recompute_layers, layers))


def _recompute_modules(model: Any, modules: tuple[str, ...]) -> None:
    """Recompute parts of each layer as Megatron-LM names them.

    Source: NVIDIA/Megatron-LM, core/transformer/transformer_layer.py and transformer_config.py (recompute_modules).
    """
    if CORE_ATTENTION in modules:
        _recompute_attention(model)
    for layer in decoder_layers(model):
        if LAYER_NORM in modules:
            discard_output(layer.input_layernorm, until=layer.self_attn)
            if FEED_FORWARD not in modules:  # which keeps that norm's output as its input
                discard_output(layer.post_attention_layernorm, until=layer.mlp)
        if FEED_FORWARD in modules:
            layer.mlp = checkpoint_wrapper(layer.mlp, preserve_rng_state=False)


def _router_shape(layer: Any) -> torch.Size | None:
    """Return the shape of the matrix that a layer's router multiplies by, None where it has no router."""
    router = getattr(getattr(layer, "mlp", None), "gate", None)
    return None if router is None else router.weight.t().shape


def _operation_contexts(router_shape: torch.Size | None) -> Any:
    """Return contexts that keep what torchtitan keeps: attention, collectives' results, every other matrix product.

    Products in fp8 are no such, and none of them is kept.

    A product with a router's matrix is neither kept nor counted. Source: torchtitan,
    distributed/activation_checkpoint.py, models/llama4/infra/parallelize.py (`_op_sac_save_list`) and
    config/job_config.py (`per_op_sac_force_recompute_mm_shapes_by_fqns`, by default the routers').
    """
    kept = {
        torch.ops.aten.mm.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops._c10d_functional.reduce_scatter_tensor.default,
        torch.ops._c10d_functional.all_to_all_single.default,
        torch.ops.aten.max.default,  # of what is cast to fp8, whose scale it gives
    }
    products_seen = {False: 0, True: 0}

    def policy(context: Any, operation: Any, *args: Any, **_kwargs: Any) -> CheckpointPolicy:
        is_product = operation is torch.ops.aten.mm.default and args[1].shape != router_shape
        products_seen[context.is_recompute] += is_product
        is_skipped_product = is_product and products_seen[context.is_recompute] % 2 == 0
        is_routers = operation is torch.ops.aten.mm.default and not is_product
        if operation in kept and not is_skipped_product and not is_routers:
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
