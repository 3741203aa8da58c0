"""Gemma 3n and the small Gemma 4: inputs for every layer, caches that layers share, streams that layers predict."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.architecture import Block, ModelSpec
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidModelConfig
from tests.planners.families.small_recent import GEMMA3N, GEMMA4_SMALL

both_families = pytest.mark.parametrize("model_type", ["gemma3n_text", "gemma4_text"])


def described(model_type: str, **fields: Any) -> ModelSpec:
    base = GEMMA3N if model_type == "gemma3n_text" else GEMMA4_SMALL
    return describe_config({"model_type": model_type, **base, **fields}, name="small")


def block_of(spec: ModelSpec, layer: int) -> Block:
    return next(block for block in spec.layers if layer in block.layers)


@both_families
def test_the_last_layers_have_neither_keys_nor_a_cache_of_their_own(model_type: str) -> None:
    spec = described(model_type)
    names = {name for name, _ in spec.named_weights()}
    assert [block_of(spec, layer).kv is None for layer in range(6)] == [False, False, False, True, True, True]
    assert "model.layers.2.self_attn.k_proj.weight" in names
    assert not any("layers.3.self_attn.k_" in name or "layers.3.self_attn.v_" in name for name in names)


@both_families
def test_layers_that_borrow_a_cache_attend_to_it_all_the_same(model_type: str) -> None:
    spec = described(model_type)
    own, borrowing = (
        next(operation for operation in block_of(spec, layer).operations if operation.name == "attention")
        for layer in (0, 3)
    )
    assert own.forward_flops_per_token(100) == borrowing.forward_flops_per_token(100)


@both_families
def test_every_layer_takes_in_its_own_input(model_type: str) -> None:
    spec = described(model_type)
    shapes = {name: weight.shape for name, weight in spec.named_weights()}
    assert shapes["model.embed_tokens_per_layer.weight"] == (97, 6 * 20)
    products = {
        operation.name: operation.matmul_shape
        for operation in block_of(spec, 5).operations
        if operation.name.startswith("per_layer")
    }
    assert products["per_layer_gate_projection"] == (64, 20)
    assert products["per_layer_projection"] == (20, 64)


@both_families
def test_every_operation_reads_what_is_there(model_type: str) -> None:
    for block in described(model_type).blocks:
        names = {tensor.name for tensor in block.tensors} | {"layer_output", "loss"}
        for operation in block.operations:
            assert {*operation.inputs, operation.output} <= names, (block.kind, operation.name)


def test_gemma_3n_carries_all_its_streams_between_layers() -> None:
    spec = described("gemma3n_text")
    widths = {tensor.name: tensor.width for tensor in spec.layers[0].tensors}
    assert widths["residual"] == 3 * 64
    assert widths["active_prediction"] == 64


def test_a_gemma_4_without_inputs_for_every_layer_has_no_second_table() -> None:
    spec = described("gemma4_text", hidden_size_per_layer_input=0)
    assert not any("per_layer" in name for name, _ in spec.named_weights())


@both_families
@pytest.mark.parametrize(("shared", "is_valid"), [(3, True), (4, False), (6, False), (7, False)])
def test_a_shared_cache_needs_a_layer_of_its_kind_before_it(model_type: str, shared: int, is_valid: bool) -> None:
    # Layers 0, 1, 3 and 4 slide, 2 and 5 see everything: four shared leave no layer that sees everything with a cache.
    if is_valid:
        assert described(model_type, num_kv_shared_layers=shared).num_layers == 6
        return
    with pytest.raises(InvalidModelConfig) as caught:
        described(model_type, num_kv_shared_layers=shared)
    assert caught.value.pointer == "/model/config/num_kv_shared_layers"


@pytest.mark.parametrize(
    ("key", "value"),
    [("layer_types", ["full_attention"]), ("intermediate_size", [88, 88]), ("intermediate_size", [88, 88, 0, 1, 1, 1])],
)
def test_lists_of_another_length_are_refused(key: str, value: Any) -> None:
    with pytest.raises(InvalidModelConfig) as caught:
        described("gemma3n_text", **{key: value})
    assert caught.value.pointer == f"/model/config/{key}"


def test_every_fifth_layer_of_gemma_3n_sees_everything_where_no_list_says() -> None:
    spec = described("gemma3n_text", layer_types=None, num_kv_shared_layers=0)
    windows = [block_of(spec, layer).kv for layer in range(6)]
    assert [state.window for state in windows if state] == [512, 512, 512, 512, None, 512]
