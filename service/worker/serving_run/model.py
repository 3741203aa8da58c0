"""One rank's model for serving: built without storage, given some on a device or left to fake tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from planners.serving.weights import padded_vocabulary
from service.worker.device_run.real_weights import INITIALIZER_RANGE, SEED, is_rotary
from service.worker.dry_run.building import causal_model
from service.worker.dry_run.tensor_parallel import split_over_tensor_ranks
from service.worker.dry_run.tracker import local_tensor
from service.worker.serving_run.cache import SERVED_ATTENTION, BlockCache, register_served_attention
from service.worker.serving_run.deployment import Deployment
from service.worker.serving_run.narrow_linear import NARROW_DTYPES, narrow_matrices

# What is computed in, and what all that is not narrow is kept in.
WIDE_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
ENGINE_WITH_TABLE = "vllm"


def wide_dtype(deployment: Deployment) -> torch.dtype:
    """Return the format of activations, and of weights that are not in a narrow one."""
    return WIDE_DTYPES.get(deployment.weights, torch.bfloat16)


def served_model(deployment: Deployment, mesh: DeviceMesh | None, cache: BlockCache, *, by_shape: bool) -> Any:
    """Return the rank's model on the ambient device, its attention going through `cache`.

    vLLM pads the vocabulary. With `by_shape` narrow matrices are multiplied by shape alone.
    """
    register_served_attention(cache)
    rows = deployment.vocabulary_size
    if deployment.engine == ENGINE_WITH_TABLE:
        rows = padded_vocabulary(rows)
    config = {**deployment.config, "vocab_size": rows}
    model: Any = causal_model(config, dtype=wide_dtype(deployment), attention=SERVED_ATTENTION)
    model.config.max_position_embeddings = max(model.config.max_position_embeddings, deployment.sequence_tokens)
    model.eval()
    model.requires_grad_(False)
    is_tied = model.lm_head.weight is model.model.embed_tokens.weight
    if mesh is not None:
        split_over_tensor_ranks(model, mesh["tensor"], sequence_parallel=False, gather_logits=True)
        if is_tied:
            model.lm_head.weight = model.model.embed_tokens.weight
    if deployment.weights in NARROW_DTYPES:
        narrow_matrices(model, deployment.weights, by_shape=by_shape)
    return model


def load_random(model: Any, device_type: str) -> None:
    """Give the model storage on a device, and random values."""
    rotary = {name: type(module)(config=model.config) for name, module in model.named_modules() if is_rotary(module)}
    model.to_empty(device=device_type)
    torch.manual_seed(SEED)
    with torch.no_grad():
        for parameter in model.parameters():
            _fill(local_tensor(parameter))
        for name, module in rotary.items():
            for key, value in module.named_buffers():
                model.get_submodule(name).get_buffer(key).copy_(value)


def rotary_table(deployment: Deployment, model: Any, device_type: str) -> torch.Tensor | None:
    """Return the table of cosines and sines for every position that vLLM keeps, and transformers does not.

    Source: vllm/model_executor/layers/rotary_embedding/base.py, _compute_cos_sin_cache.
    """
    if deployment.engine != ENGINE_WITH_TABLE:
        return None
    positions = int(deployment.config.get("max_position_embeddings") or 0)
    width = 2 * int(model.model.rotary_emb.inv_freq.numel())
    return torch.zeros(positions, width, dtype=wide_dtype(deployment), device=device_type)


def _fill(tensor: torch.Tensor) -> None:
    if tensor.dtype in NARROW_DTYPES.values():
        # Half the range of int8, of which fp8 has every whole number that it can hold.
        tensor.copy_(torch.randint(-64, 64, tensor.shape, dtype=torch.int8, device=tensor.device))
    elif tensor.dim() > 1:
        tensor.normal_(std=INITIALIZER_RANGE)
    else:
        tensor.fill_(1.0)
