"""One rank's model for serving: built without storage, given some on a device or left to fake tensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from plimsoll.planners.serving.weights.placement import policy_of
from plimsoll.service.worker.engines.engine import engines
from plimsoll.service.worker.serving.cache import BlockCache
from plimsoll.service.worker.serving.cached_layers import cached_layers, keeps_latents
from plimsoll.service.worker.serving.deployment import Deployment
from plimsoll.service.worker.serving.divided_layers import divide
from plimsoll.service.worker.serving.engine_kernels import fuse_layers
from plimsoll.service.worker.serving.expert_kernels import fuse_experts
from plimsoll.service.worker.serving.latent_attention import serve_latents
from plimsoll.service.worker.serving.narrow_linear import SHAPES, narrow_matrices
from plimsoll.service.worker.serving.served_attention import SERVED_ATTENTION, register_served_attention
from plimsoll.service.worker.serving.weight_storage import NARROW_DTYPES
from plimsoll.service.worker.training.building import causal_model
from plimsoll.service.worker.training.real_weights import INITIALIZER_RANGE, SEED, is_rotary

# transformers' buffers of a rotary embedding: an angle's step for each pair of features, one for each kind of layer.
FREQUENCIES, UNSCALED_FREQUENCIES = "inv_freq", "original_inv_freq"
# What is computed in, and what all that is not narrow is kept in.
WIDE_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


def wide_dtype(deployment: Deployment) -> torch.dtype:
    """Return the format of activations, and of weights that are not in a narrow one."""
    return WIDE_DTYPES.get(deployment.weights, torch.bfloat16)


def served_model(deployment: Deployment, group: dist.ProcessGroup | None, cache: BlockCache, *, by_shape: bool) -> Any:
    """Return the rank's model on the ambient device, its attention going through `cache`.

    With `by_shape` narrow matrices are multiplied by shape alone, and of the engine's own
    kernels is made what they make.
    """
    register_served_attention(cache)
    rows, has_own_kernels = deployment.vocabulary_size, engines()[deployment.engine].has_own_kernels
    if has_own_kernels:
        rows = policy_of(deployment.engine).vocabulary_rows(rows, 1)
    config = {**deployment.config, "vocab_size": rows}
    model: Any = causal_model(config, dtype=wide_dtype(deployment), attention=SERVED_ATTENTION)
    model.config.max_position_embeddings = max(model.config.max_position_embeddings, deployment.sequence_tokens)
    model.eval()
    model.requires_grad_(False)
    cache.arrange(cached_layers(model, deployment))
    _cut_to_stage(model, deployment)
    if group is not None:
        divide(model, group)
    if has_own_kernels:
        _serve_as_engine(model, deployment, group, cache, by_shape=by_shape)
    if deployment.weights in SHAPES:
        narrow_matrices(model, deployment.weights, by_shape=by_shape)
    return model


def _cut_to_stage(model: Any, deployment: Deployment) -> None:
    """Leave the model its stage's layers, with the embedding on the first and the head on the last."""
    stage = deployment.stage_layers
    if stage is None:
        return
    inner, config = model.model, model.config
    inner.layers = nn.ModuleList(list(inner.layers)[stage.start : stage.stop])
    config.num_hidden_layers = len(stage)
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = config.layer_types[stage.start : stage.stop]
    if not deployment.has_embedding:
        inner.embed_tokens = None
    if not deployment.has_head:
        inner.norm, model.lm_head = nn.Identity(), None


def _serve_as_engine(
    model: Any, deployment: Deployment, group: dist.ProcessGroup | None, cache: BlockCache, *, by_shape: bool
) -> None:
    """Put the engine's mixtures and latent attention, and by shape its fused kernels, in place of transformers'."""
    fuse_experts(model, deployment, group, by_shape=by_shape)
    if keeps_latents(model.model.layers[0].self_attn):
        serve_latents(model, cache, deployment, wide_dtype(deployment))
    if by_shape:
        fuse_layers(model)


def load_random(model: Any, device_type: str) -> None:
    """Give the model storage on a device, and random values."""
    rotary = {name: type(module)(config=model.config) for name, module in model.named_modules() if is_rotary(module)}
    model.to_empty(device=device_type)
    torch.manual_seed(SEED)
    with torch.no_grad():
        for parameter in model.parameters():
            _fill(parameter)
        for buffer in model.buffers():
            buffer.fill_(1)
        for name, module in rotary.items():
            for key, value in module.named_buffers():
                model.get_submodule(name).get_buffer(key).copy_(value)


def rotary_tables(deployment: Deployment, model: Any, device_type: str) -> list[torch.Tensor]:
    """Return the tables of cosines and sines for every position that the engine keeps, and transformers does not.

    There is one for each kind of layer whose angles differ.

    Source: vllm/model_executor/layers/rotary_embedding, [positions, rotary width] in the model's format.
    """
    if not engines()[deployment.engine].has_own_kernels:
        return []
    positions = int(deployment.config.get("max_position_embeddings") or 0)
    widths = [
        2 * buffer.numel()
        for name, buffer in model.model.rotary_emb.named_buffers()
        if name.endswith(FREQUENCIES) and not name.endswith(UNSCALED_FREQUENCIES)
    ]
    dtype = wide_dtype(deployment)
    return [torch.zeros(positions, width, dtype=dtype, device=device_type) for width in widths]


def _fill(tensor: torch.Tensor) -> None:
    if tensor.dtype in NARROW_DTYPES.values():
        # Half the range of int8, of which fp8 has every whole number that it can hold.
        tensor.copy_(torch.randint(-64, 64, tensor.shape, dtype=torch.int8, device=tensor.device))
    elif tensor.dim() > 1:
        tensor.normal_(std=INITIALIZER_RANGE)
    else:
        tensor.fill_(1.0)
