"""Tests of what each rank and stage holds."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.formats.weight_format import WEIGHT_FORMATS, weight_format
from plimsoll.planners.serving.releases.profile import engine_profile
from plimsoll.planners.serving.weights.divisibility import layout_obstacle, tensor_parallel_obstacle
from plimsoll.planners.serving.weights.placement import policy_of
from plimsoll.planners.serving.weights.stages import (
    has_vision,
    replica_stages,
    rotary_table_bytes,
    stage_layers,
)
from tests.planners.serving.factories import GPT2, H100, LLAMA_8B, LLAMA_70B, MIXTRAL, QWEN2_0_5B, model

BF16 = WEIGHT_FORMATS["bf16"]


def stages_of(spec, fmt=BF16, tensor_parallel=1, pipeline_parallel=1):
    degrees = Degrees(tensor_parallel=tensor_parallel, pipeline_parallel=pipeline_parallel)
    return replica_stages(spec, fmt, degrees, engine="vllm")


def test_a_70b_weighs_140_gb():
    # Published as 70.55 billion parameters, 2 bytes each; "70B" rounds that to 140 GB.
    spec = model(LLAMA_70B)
    (stage,) = stages_of(spec)
    assert stage.weight_bytes == 2 * spec.parameters
    assert stage.weight_bytes == pytest.approx(140e9, rel=0.01)


def test_every_stage_keeps_the_rotary_table_of_every_position():
    # 131,072 positions x 128 x 2 bytes = 32 MiB.
    assert rotary_table_bytes(model(), BF16) == 32 * 2**20
    assert [stage.buffer_bytes for stage in stages_of(model(), pipeline_parallel=2)] == [32 * 2**20] * 2


def test_a_model_with_learned_positions_has_no_rotary_table():
    assert rotary_table_bytes(model(GPT2), BF16) == 0


@pytest.mark.parametrize(
    ("layers", "stages", "shares"),
    [
        (32, 1, [32]),
        (32, 4, [8, 8, 8, 8]),
        (32, 3, [11, 11, 10]),
        (32, 7, [4, 4, 5, 5, 5, 5, 4]),
        (33, 2, [17, 16]),
        (5, 5, [1, 1, 1, 1, 1]),
    ],
)
def test_left_over_layers_go_to_the_stages_before_the_last(layers, stages, shares):
    assert [len(part) for part in stage_layers(layers, stages)] == shares


@given(layers=st.integers(1, 200), stages=st.integers(1, 64))
def test_stages_cover_every_layer_once_and_in_order(layers, stages):
    if stages <= layers:
        assert [layer for part in stage_layers(layers, stages) for layer in part] == list(range(layers))


def test_embedding_stands_first_and_head_last():
    # One layer: 218,112,000 x 2 bytes; embedding 128,256 x 4,096 x 2 = 1,050,673,152; the last norm 8,192.
    first, last = stages_of(model(), pipeline_parallel=2)
    layers = 16 * 2 * 218_112_000
    assert first.weight_bytes == layers + 1_050_673_152
    assert last.weight_bytes == layers + 1_050_673_152 + 8_192
    assert (first.has_head, last.has_head) == (False, True)


def test_a_tied_head_on_another_stage_is_a_second_copy():
    spec = model(QWEN2_0_5B)
    (whole,) = stages_of(spec)
    parts = stages_of(spec, pipeline_parallel=2)
    assert sum(part.weight_bytes for part in parts) == whole.weight_bytes + 151_936 * 896 * 2


def test_a_decode_step_reads_the_head_but_not_the_embeddings_rows():
    (untied,) = stages_of(model())
    assert untied.read_bytes == untied.weight_bytes - 128_256 * 4096 * 2
    (tied,) = stages_of(model(QWEN2_0_5B))
    assert tied.read_bytes == tied.weight_bytes


@pytest.mark.parametrize(("size", "padded"), [(63, 64), (64, 64), (65, 128), (50257, 50304)])
def test_vocabularies_are_padded_to_64_rows(size, padded):
    assert policy_of("vllm").vocabulary_rows(size, 1) == padded


def test_key_value_heads_fewer_than_the_ranks_are_replicated():
    # k and v keep one head of 128 on each of 16 ranks, where an even share were half a head:
    # 2 x 64 x 4,096 elements of 2 bytes more in each of 32 layers.
    (sixteen,) = stages_of(model(), tensor_parallel=16)
    norms = (32 * 2 + 1) * 4096 * 2
    even = (2 * model().parameters - norms) // 16 + norms
    assert sixteen.weight_bytes - even == 32 * 2 * 64 * 4096 * 2


def test_fp8_halves_the_layers_matrices_and_leaves_the_rest():
    # 32 layers of 218,103,808 matrix elements; 7 matrices a layer have one 4-byte scale each.
    (half,), (whole,) = stages_of(model(), WEIGHT_FORMATS["fp8"]), stages_of(model())
    assert whole.weight_bytes - half.weight_bytes == 32 * (218_103_808 - 7 * 4)


@pytest.mark.parametrize(
    ("config", "fmt", "printed_gib"),
    # Printed by vLLM before 0.7.1 for neuralmagic/Meta-Llama-3.1-70B-Instruct-quantized.w8a8 (pull request 12569), the
    # rotary table included.
    [(LLAMA_70B, "int8", 67.72)],
)
def test_quantized_weights_are_what_the_engine_printed(config, fmt, printed_gib):
    (stage,) = stages_of(model(config), WEIGHT_FORMATS[fmt])
    assert stage.total_bytes / 2**30 == pytest.approx(printed_gib, abs=0.005)


def test_mxfp4_is_for_experts_alone_where_a_model_has_them():
    assert WEIGHT_FORMATS["mxfp4"].stack_of(model()).name == "compressed-tensors-mxfp4"
    mixture = model({**LLAMA_8B, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2})
    assert WEIGHT_FORMATS["mxfp4"].stack_of(mixture).name == "gpt-oss-mxfp4"
    assert WEIGHT_FORMATS["bf16"].stack_of(model()) is None


def test_all_experts_of_a_layer_are_counted():
    mixture = model({**LLAMA_8B, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2})
    (stage,) = stages_of(mixture)
    assert stage.weight_bytes == 2 * mixture.parameters


@pytest.mark.parametrize(
    ("changes", "degree", "reason"),
    [
        ({}, 3, "32 attention heads"),
        ({"num_attention_heads": 24, "num_key_value_heads": 3, "head_dim": 128}, 4, "3 key-value heads"),
        ({"intermediate_size": 14338}, 4, "dimension 14338"),
    ],
)
def test_degrees_that_the_shapes_forbid_name_the_reason(changes, degree, reason):
    obstacle = layout_obstacle(model({**LLAMA_8B, **changes}), Degrees(tensor_parallel=degree), engine="vllm")
    assert reason in str(obstacle)
    assert obstacle.pointer == "/layout/tensor_parallel"


@pytest.mark.parametrize("degree", [1, 2, 4, 8, 16, 32])
def test_degrees_that_divide_the_heads_are_allowed(degree):
    assert tensor_parallel_obstacle(model(), degree) is None


def test_a_card_multiplies_in_the_best_format_it_has():
    assert weight_format("fp8").peak_flops_per_second(H100) == 1978.9e12
    assert weight_format("nvfp4").peak_flops_per_second(H100) == 989.4e12


def test_a_card_without_a_rate_for_the_format_is_refused():
    gpu = dataclasses.replace(H100, peak_flops_per_second={"fp32": 1e12})
    with pytest.raises(InvalidQuestion, match="bf16 or fp16") as caught:
        weight_format("bf16").peak_flops_per_second(gpu)
    assert caught.value.pointer == "/serving/weights"


def test_a_quantized_format_is_smaller_than_the_rest_of_the_model():
    assert [name for name, fmt in WEIGHT_FORMATS.items() if not fmt.is_quantized] == ["fp32", "bf16", "fp16"]


def expert_bytes(**degrees):
    (stage,) = replica_stages(model(MIXTRAL), BF16, Degrees(**degrees), engine="vllm")
    return stage.expert_bytes


def test_experts_are_divided_by_all_ranks_of_a_stage_whole_or_cut():
    # 32 layers x 8 experts x 3 matrices x 4,096 x 14,336 x 2 bytes.
    everything = 32 * 8 * 3 * 4096 * 14336 * 2
    assert expert_bytes() == everything
    assert expert_bytes(tensor_parallel=4) == everything // 4
    assert expert_bytes(attention_data_parallel=4) == everything // 4
    assert expert_bytes(tensor_parallel=2, attention_data_parallel=2, expert_parallel=4) == everything // 4


def test_the_first_of_uneven_expert_ranks_holds_one_more():
    # 8 experts over 3 ranks: 3, 3 and 2.
    assert expert_bytes(attention_data_parallel=3, expert_parallel=3) == 3 * expert_bytes() // 8


def test_attention_data_parallel_ranks_hold_all_that_is_no_expert():
    (alone,) = replica_stages(model(MIXTRAL), BF16, Degrees(), engine="vllm")
    (rank,) = replica_stages(model(MIXTRAL), BF16, Degrees(attention_data_parallel=4), engine="vllm")
    assert rank.weight_bytes - rank.expert_bytes == alone.weight_bytes - alone.expert_bytes


DEEPSEEK_LITE = describe_config(catalogue().model("deepseek-ai/DeepSeek-V2-Lite").config, name="model")
# 27 layers x 512 x 16 heads x (128 + 128), in 16 bits.
UP_PROJECTIONS = 27 * 512 * 16 * 256 * 2


def test_vllm_takes_views_of_a_latents_plain_up_projection():
    (stage,) = stages_of(DEEPSEEK_LITE)
    assert stage.weight_bytes == 2 * DEEPSEEK_LITE.parameters


def test_a_latents_up_projection_in_8_bits_is_copied_in_16():
    fp8 = WEIGHT_FORMATS["fp8"]
    (stage,) = stages_of(DEEPSEEK_LITE, fp8)
    (copying,) = replica_stages(DEEPSEEK_LITE, fp8, Degrees(), engine="sglang")
    assert stage.weight_bytes == copying.weight_bytes > DEEPSEEK_LITE.parameters + UP_PROJECTIONS


def test_other_engines_copy_a_plain_up_projection():
    (stage,) = replica_stages(DEEPSEEK_LITE, BF16, Degrees(), engine="sglang")
    assert stage.weight_bytes - 2 * DEEPSEEK_LITE.parameters == UP_PROJECTIONS


def test_a_workspace_for_latents_stands_beside_the_weights_of_those_alone():
    # DeepSeek-V2-Lite's log at 0.19 prints 29.43 GiB: its parameters, its table of angles and 128 MiB.
    workspace = engine_profile("vllm", "0.19").latent_workspace_bytes
    (stage,) = replica_stages(DEEPSEEK_LITE, BF16, Degrees(), engine="vllm", latent_workspace_bytes=workspace)
    assert stage.total_bytes / GIB == pytest.approx(29.43, abs=0.04)
    (other,) = replica_stages(model(), BF16, Degrees(), engine="vllm", latent_workspace_bytes=workspace)
    assert other.buffer_bytes == rotary_table_bytes(model(), BF16)
    assert engine_profile("vllm", None).latent_workspace_bytes == 0


def test_a_latents_rotary_table_has_the_features_beside_its_rank():
    # 163,840 positions x 64 x 2 bytes.
    spec = describe_config(catalogue().model("deepseek-ai/DeepSeek-V2-Lite").config, name="model")
    assert rotary_table_bytes(spec, BF16) == 163840 * 64 * 2


def test_a_vision_towers_matrices_are_divided():
    # Llama-4-Scout on 4 ranks logs 53.12 GiB.
    spec = describe_config(catalogue().model("meta-llama/Llama-4-Scout-17B-16E-Instruct").config, name="model")
    (stage,) = stages_of(spec, tensor_parallel=4)
    assert has_vision(spec)
    assert not has_vision(model())
    assert stage.total_bytes / GIB == pytest.approx(53.12, abs=0.03)


def published_stage(name, fmt=BF16, **degrees):
    spec = describe_config(catalogue().model(name).config, name="model")
    (stage,) = stages_of(spec, fmt, **degrees)
    return stage


def test_gemma_3_keeps_a_table_of_eight_times_its_positions_beside_the_plain_one():
    # 9 x 131,072 positions x 256 x 2 bytes; the 4B's log prints 8.58 GiB, the 12B's 23.31.
    stage = published_stage("google/gemma-3-4b-it")
    assert stage.buffer_bytes == 9 * 131072 * 256 * 2
    assert stage.total_bytes / GIB == pytest.approx(8.58, abs=0.03)
    assert published_stage("google/gemma-3-12b-it").total_bytes / GIB == pytest.approx(23.31, abs=0.06)


def test_a_partial_rotary_table_is_narrower():
    # Qwen3.5 turns 64 of 256 features of 262,144 positions.
    assert published_stage("Qwen/Qwen3.5-27B").buffer_bytes == 262144 * 64 * 2


def test_experts_in_mxfp4_are_padded_for_their_kernels():
    # A rank of two: 1,440 inner features to 1,536, 2,880 hidden ones to 3,072; 24 layers, 32 experts,
    # 3 matrices, 17/32 bytes an element, and biases of 2 x 1,440 + 2,880 in bf16.
    stage = published_stage("openai/gpt-oss-20b", WEIGHT_FORMATS["mxfp4"], tensor_parallel=2)
    matrices = 24 * 32 * 3 * 1536 * 3072 * 17 // 32
    assert stage.expert_bytes == matrices + 24 * 32 * (2 * 1440 + 2880) * 2
    assert stage.total_bytes / GIB == pytest.approx(7.01, rel=0.012)
    alone = published_stage("openai/gpt-oss-20b", WEIGHT_FORMATS["mxfp4"])
    assert alone.total_bytes / GIB == pytest.approx(13.72, rel=0.004)


@pytest.mark.parametrize(("engine", "is_divided"), [("vllm", False), ("sglang", True), ("tensorrt-llm", True)])
def test_a_vocabulary_that_does_not_divide_is_padded_by_all_but_vllm(engine, is_divided):
    # 151,936 rows are 64 x 2,374 and do not divide by 7; SGLang pads them to 64 x 7 x 340 = 152,320, 21,760 a rank,
    # TensorRT-LLM rounds 151,936 / 7 up to 21,706.
    spec, degrees = model(QWEN2_0_5B, num_key_value_heads=7, intermediate_size=7 * 640), Degrees(tensor_parallel=7)
    assert (layout_obstacle(spec, degrees, engine=engine) is None) is is_divided


@pytest.mark.parametrize(("engine", "is_dealt"), [("vllm", True), ("sglang", False), ("tensorrt-llm", False)])
def test_vllm_alone_deals_experts_out_unevenly(engine, is_dealt):
    # Eight experts over three ranks: vLLM's determine_expert_map gives 3, 3 and 2; SGLang asserts that they divide.
    spec, degrees = model(MIXTRAL), Degrees(attention_data_parallel=3, expert_parallel=3)
    assert (layout_obstacle(spec, degrees, engine=engine) is None) is is_dealt
