"""What fused kernels make, in place of transformers' operations."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from plimsoll.service.worker.serving.engine_kernels import (
    FusedFeedForward,
    FusedNorm,
    fuse_layers,
    rotating_in_place,
)
from plimsoll.service.worker.training.building import causal_model
from tests.service.worker.cases import LLAMA


def fused():
    model = causal_model(LLAMA, dtype=torch.bfloat16)
    fuse_layers(model)
    return model


def test_every_norm_and_feed_forward_is_fused_and_keeps_its_weights():
    with torch.device("meta"):
        model = fused()
    names = {type(module).__name__ for module in model.modules()}
    assert "LlamaRMSNorm" not in names
    assert "LlamaMLP" not in names
    assert sum(isinstance(module, FusedNorm) for module in model.modules()) == 5
    assert sum(isinstance(module, FusedFeedForward) for module in model.modules()) == 2
    assert model.model.layers[0].mlp.down_proj.weight.shape == (64, 176)


def test_a_fused_feed_forward_has_its_shapes():
    with FakeTensorMode():
        layer = fused().model.layers[0]
        hidden = torch.empty(1, 8, 64, dtype=torch.bfloat16)
        assert layer.mlp(hidden).shape == layer.input_layernorm(hidden).shape == (1, 8, 64)


def test_queries_are_rotated_where_they_are_and_only_inside():
    from transformers.models.llama import modeling_llama

    with torch.device("meta"):
        model = fused()
    query = torch.ones(1, 4, 2, 16)
    with rotating_in_place(model):
        rotated, _ = modeling_llama.apply_rotary_pos_emb(query, query, query, query)
        assert rotated is query
    rotated, _ = modeling_llama.apply_rotary_pos_emb(query, query, query[:, 0], query[:, 0])
    assert rotated is not query
