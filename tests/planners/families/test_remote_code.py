"""Families without a module in transformers: hand-worked counts, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.architecture import OperationKind
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidModelConfig

QWEN: dict[str, Any] = {
    "model_type": "qwen",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "kv_channels": 8,
}
GLM: dict[str, Any] = {
    "model_type": "chatglm",
    "padded_vocab_size": 128,
    "hidden_size": 64,
    "ffn_hidden_size": 96,
    "num_layers": 2,
    "num_attention_heads": 8,
    "kv_channels": 8,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # Table and head 2 x 92,544 x 4,096 = 758,120,448; a layer: QKV 6,144 x 4,096, output 4,096^2, feed-forward
        # 3 x 4,096 x 14,336, norms 8,192 = 218,112,000, 32 of them 6,979,584,000; last norm 4,096.
        ("internlm/internlm2-7b", 7_737_708_544),
        # 2 x 125,696 x 4,096 = 1,029,701,632; a layer 4 x 4,096^2 + 3 x 4,096 x 11,008 + 8,192 = 202,383,360, 32 of
        # them 6,476,267,520; last norm 4,096.
        ("baichuan-inc/Baichuan2-7B-Base", 7_505_973_248),
        # 2 x 151,936 x 4,096 = 1,244,659,712; a layer as Baichuan's and the bias of QKV 12,288 = 202,395,648, 32 of
        # them 6,476,660,736; last norm 4,096.
        ("Qwen/Qwen-7B", 7_721_324_544),
        # 2 x 65,024 x 4,096 = 532,676,608; a layer: QKV 4,608 x 4,096 + 4,608, output 4,096^2, feed-forward
        # 3 x 4,096 x 13,696, norms 8,192 = 203,960,832, 28 of them 5,710,903,296; last norm 4,096; 32 frequencies.
        ("THUDM/chatglm3-6b", 6_243_584_032),
        # 130,528 x 4,096 = 534,642,688; a layer: QKV 3 x 4,096^2 + 12,288, output 4,096^2 + 4,096, feed-forward
        # 2 x 4,096 x 16,384 + 20,480, norms 4 x 4,096 = 201,379,840, 28 of them 5,638,635,520; last norm 8,192.
        ("THUDM/chatglm-6b", 6_173_286_400),
        # 122,753 x 2,304 = 282,822,912; a layer 4 x 2,304^2 + 3 x 2,304 x 5,760 + 4,608 = 61,051,392, 40 of them
        # 2,442,055,680; last norm 2,304.
        ("openbmb/MiniCPM-2B-sft-bf16", 2_724_880_896),
    ],
)
def test_the_count_is_worked_out_by_hand_and_the_published_one(name: str, parameters: int) -> None:
    model = catalogue().model(name)
    assert describe_config(model.config, name=name).parameters == parameters
    assert model.published_parameters == parameters


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # 2 x 157,184 x 8,192 = 2,575,302,656; attention 10,240 x 8,192 + 8,192^2 + 256 = 150,995,200 and norms 16,384
        # in 80 layers, 12,080,926,720; 4 dense of 3 x 8,192 x 18,432 = 452,984,832; 76 of 257 experts of
        # 3 x 8,192 x 2,048, router 256 x 8,192 and its bias 256, 12,937,330,944 each; last norm 8,192.
        ("inclusionAI/Ling-1T", 999_705_328_640),
        # 2 x 151,680 x 4,096 = 1,242,562,560; a layer: QKV 6,144 x 4,096 + 6,144, output 4,096^2, feed-forward
        # 3 x 4,096 x 11,008, norms 8,192 = 177,223,680, 36 of them 6,380,052,480; last norm 4,096.
        ("XiaomiMiMo/MiMo-7B-Base", 7_622_619_136),
        # 2 x 100,008 x 4,096 = 819,265,536; a layer 4 x 4,096^2 + 3 x 4,096 x 11,008 + 8,192 = 202,383,360, 32 of them
        # 6,476,267,520; last norm 4,096.
        ("BAAI/Aquila2-7B", 7_295_537_152),
    ],
)
def test_a_count_that_nobody_published_is_worked_out_by_hand(name: str, parameters: int) -> None:
    assert describe_config(catalogue().model(name).config, name=name).parameters == parameters


@pytest.mark.parametrize("key", ["use_bias", "use_qkv_bias", "norm_head"])
def test_a_ling_that_is_not_as_published_is_refused(key: str) -> None:
    config = {**catalogue().model("ling-1t").config, key: True}
    with pytest.raises(InvalidModelConfig) as caught:
        describe_config(config, name="odd")
    assert caught.value.pointer == f"/model/config/{key}"


@pytest.mark.parametrize("key", ["attn_res_block_size", "mla_use_output_gate", "routed_expert_hidden_size"])
def test_a_kimi_k3_is_not_taken_for_a_kimi_linear(key: str) -> None:
    config = {**catalogue().model("Kimi-Linear-48B-A3B-Base").config, key: 12}
    with pytest.raises(InvalidModelConfig, match="Kimi K3"):
        describe_config(config, name="k3")


def test_qwens_intermediate_size_is_gate_and_up_together() -> None:
    shapes = {name: weight.shape for name, weight in describe_config(QWEN, name="small").named_weights()}
    assert shapes["transformer.h.1.mlp.w1.weight"] == shapes["transformer.h.1.mlp.w2.weight"] == (96, 64)
    assert shapes["transformer.h.1.mlp.c_proj.weight"] == (64, 96)


@pytest.mark.parametrize(("key", "value"), [("no_bias", False), ("intermediate_size", 193)])
def test_a_qwen_that_is_not_as_published_is_refused(key: str, value: Any) -> None:
    with pytest.raises(InvalidModelConfig) as caught:
        describe_config({**QWEN, key: value}, name="odd")
    assert caught.value.pointer == f"/model/config/{key}"


@pytest.mark.parametrize(("key", "value"), [("add_bias_linear", True), ("rmsnorm", False), ("post_layer_norm", False)])
def test_a_chatglm_that_is_not_as_published_is_refused(key: str, value: Any) -> None:
    with pytest.raises(InvalidModelConfig) as caught:
        describe_config({**GLM, key: value}, name="odd")
    assert caught.value.pointer == f"/model/config/{key}"


@pytest.mark.parametrize(("grouped", "heads"), [(True, 2), (False, 8)])
def test_chatglms_groups_count_only_where_it_is_multi_query(grouped: bool, heads: int) -> None:
    assert describe_config({**GLM, "multi_query_attention": grouped}, name="small").key_value_heads == heads


@pytest.mark.parametrize(("name", "rotates"), [("Baichuan2-7B-Base", True), ("Baichuan2-13B-Base", False)])
def test_only_the_small_baichuan_rotates(name: str, rotates: bool) -> None:
    spec = describe_config(catalogue().model(name.lower()).config, name=name)
    kinds = {operation.kind for block in spec.layers for operation in block.operations}
    assert (OperationKind.ROTARY in kinds) is rotates


def test_the_first_yi_models_are_llamas_under_another_type() -> None:
    config = dict(catalogue().model("01-ai/Yi-34B").config)
    as_llama, as_yi = (
        describe_config({**config, "model_type": model_type}, name="34b") for model_type in ("llama", "Yi")
    )
    assert list(as_yi.named_weights()) == list(as_llama.named_weights())


def test_kimi_vl_is_moonlight_with_a_tower_and_a_projector() -> None:
    # Patches 3 x 14^2 x 1,152 + 1,152, positions 64^2 x 1,152; a layer 4 x 1,152^2 + 2 x 1,152 x 4,304 and biases
    # 4 x 1,152 + 4,304 + 1,152, norms 4 x 1,152 = 15,239,504, 27 of them; last norm 2,304: 416,866,032.
    # Projector: norm 2,304, 4,608^2 + 4,608, 2,048 x 4,608 + 2,048: 30,679,808.
    moonlight, seeing = (
        catalogue().model(f"moonshotai/{name}") for name in ("Moonlight-16B-A3B", "Kimi-VL-A3B-Instruct")
    )
    alone = describe_config(moonlight.config, name="moonlight").parameters
    assert describe_config(seeing.config, name="kimi-vl").parameters == alone + 416_866_032 + 30_679_808


def test_kimi_vl_puts_squares_of_two_by_two_patches_together() -> None:
    config = dict(catalogue().model("moonshotai/Kimi-VL-A3B-Instruct").config)
    config["vision_config"] = {**config["vision_config"], "merge_kernel_size": [3, 3]}
    with pytest.raises(InvalidModelConfig, match="two by two"):
        describe_config(config, name="kimi-vl")
