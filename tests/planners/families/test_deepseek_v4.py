"""DeepSeek V4: what its layers remember, what they attend to, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.architecture import KvKind, ModelSpec, OperationKind
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidModelConfig
from tests.planners.families.small_recent import DEEPSEEK_V4


def described(**fields: Any) -> ModelSpec:
    return describe_config({"model_type": "deepseek_v4", **DEEPSEEK_V4, **fields}, name="small")


def flash() -> ModelSpec:
    return describe_config(catalogue().model("deepseek-v4-flash").config, name="flash")


def test_flash_has_two_windowed_layers_and_as_many_sparsely_as_heavily_compressed_ones() -> None:
    # compress_ratios: 0, 0, then 4 and 128 in turn over 41 layers; its last entry is the multi-token layer's.
    grown = {block.kv.elements_per_token: 0 for block in flash().layers if block.kv}
    for block in flash().layers:
        if block.kv:
            grown[block.kv.elements_per_token] += block.repeats
    # A windowed layer: 512 a token. Sparse: (512 + 128) / 4 = 160. Heavy: 512 / 128 = 4.
    assert grown == {512: 2, 160: 21, 4: 20}


def test_what_grows_is_the_entries_and_the_window_does_not() -> None:
    states = {block.kv.kind for block in flash().layers if block.kv}
    assert states == {KvKind.SLIDING_WINDOW, KvKind.COMPRESSED}
    assert {block.kv.window for block in flash().layers if block.kv} == {128}


@pytest.mark.parametrize(("context", "entries"), [(1024, 256), (4096, 512 - 512 * 511 / 4094)])
def test_sparse_attention_reads_the_chosen_entries_and_no_more(context: int, entries: int) -> None:
    block = next(block for block in flash().layers if block.kv and block.kv.elements_per_token == 160)
    attention = next(operation for operation in block.operations if operation.name == "entry_attention")
    # 64 heads, key and value of 512: 2 x 64 x 1,024 operations an entry; one for 4 tokens, 512 at most. A mean of
    # 1,024 entries is that of 2,047, of which the first 512 see 1 to 512.
    assert attention.forward_flops_per_token(context) == pytest.approx(2 * 64 * 1024 * entries)


def test_heavily_compressed_layers_have_no_indexer() -> None:
    block = next(block for block in flash().layers if block.kv and block.kv.elements_per_token == 4)
    assert not any("index" in weight.name for weight in block.weights)
    assert not any("index" in operation.name for operation in block.operations)


def test_the_residual_is_four_streams_wide_and_the_head_reads_one() -> None:
    spec = flash()
    widths = {tensor.name: tensor.width for tensor in spec.head.tensors}
    assert {tensor.width for block in spec.layers for tensor in block.tensors if tensor.name == "residual"} == {16_384}
    assert (widths["residual"], widths["head_collapsed"], widths["head_input"]) == (16_384, 4096, 4096)


def test_every_operation_reads_what_is_there() -> None:
    for block in flash().blocks:
        names = {tensor.name for tensor in block.tensors} | {"layer_output", "loss"}
        for operation in block.operations:
            assert {*operation.inputs, operation.output} <= names, operation.name


def test_a_table_of_the_vocabulary_chooses_the_first_layers_experts() -> None:
    shapes = {name: weight.shape for name, weight in described().named_weights()}
    assert shapes["layers.0.ffn.gate.tid2eid"] == (131, 2)
    assert "layers.0.ffn.gate.bias" not in shapes
    assert shapes["layers.1.ffn.gate.bias"] == (6,)


def test_attention_is_divided_by_head_and_compressors_are_not() -> None:
    local = {name: weight.local_shape(2) for name, weight in described().named_weights()}
    assert local["layers.0.attn.wq_b.weight"] == (4 * 24, 40)
    assert local["layers.0.attn.wo_a.weight"] == (2 * 20, 48)
    assert local["layers.0.attn.wo_b.weight"] == (64, 2 * 20)
    assert local["layers.0.attn.compressor.wkv.weight"] == (24, 64)


def test_attention_costs_what_its_kind_says() -> None:
    kinds = [operation.kind for block in described().layers for operation in block.operations]
    assert OperationKind.ROTARY in kinds
    assert described().forward_flops_per_token(64) > described().forward_flops_per_token(32)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention_bias", True),
        ("compress_ratios", [0, 4, 8, 4]),
        ("compress_ratios", [0, 4, 128]),
        ("layer_types", ["full_attention"] * 4),
        ("layer_types", ["sliding_attention"] * 3),
        ("mlp_layer_types", ["moe", "dense", "moe", "moe"]),
        ("n_shared_experts", 2),
        ("num_experts_per_tok", 7),
        ("num_key_value_heads", 2),
        ("o_groups", 3),
    ],
)
def test_what_no_stack_builds_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(InvalidModelConfig) as caught:
        described(**{key: value})
    assert caught.value.pointer == f"/model/config/{key}"
