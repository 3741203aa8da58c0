"""Tests of checkpoints whose scales are of blocks."""

from __future__ import annotations

import dataclasses

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.questions import ServingQuestion
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.search.search import search_fleet
from plimsoll.planners.serving.weights.scale_blocks import block_obstacle
from tests.planners.serving.factories import hardware, model, question

# Experts of 1,536 features, 12 blocks of 128: over 4 ranks 384 each, over 8 ranks 192.
QWEN3_235B = describe_config(catalogue().model("Qwen/Qwen3-235B-A22B").config, name="qwen3-235b")
# 2,048 features of experts and of the shared one: over 16 ranks 128 each, over 32 ranks 64.
DEEPSEEK_V3 = describe_config(catalogue().model("deepseek-ai/DeepSeek-V3").config, name="deepseek-v3")


def asked(spec=QWEN3_235B, **changes) -> ServingQuestion:
    return question(spec, **{"weights": "fp8", "scale_block": 128, "gpus": 8, **changes})


@pytest.mark.parametrize(
    ("spec", "tensor", "experts", "engines"),
    [
        (QWEN3_235B, 4, 1, ""),
        (QWEN3_235B, 8, 1, "vllm 0.28, sglang"),
        (QWEN3_235B, 8, 8, ""),
        # 18,432 features of the dense layers: over 16 ranks 1,152 each, nine blocks, over 32 four and a half.
        (DEEPSEEK_V3, 16, 1, ""),
        (DEEPSEEK_V3, 32, 32, "vllm 0.28, vllm 0.29, sglang"),
        # 9,728 features: 1,216 each, nine and a half blocks.
        (model(intermediate_size=9728), 8, 1, "vllm 0.28, vllm 0.29, sglang"),
        (model(intermediate_size=9728), 4, 1, ""),
    ],
)
@pytest.mark.parametrize(("engine", "version"), [("vllm", "0.28"), ("vllm", "0.29"), ("sglang", "0.5")])
def test_a_rank_holds_whole_blocks(engine, version, spec, tensor, experts, engines):
    degrees = Degrees(tensor_parallel=tensor, expert_parallel=experts)
    is_refused = (f"{engine} {version}" if engine == "vllm" else engine) in engines
    assert (block_obstacle(asked(spec, engine=engine), degrees, version) is not None) is is_refused


@pytest.mark.parametrize(
    "changes", [{"scale_block": None}, {"weights": "int4"}, {"engine": "tensorrt-llm", "engine_version": None}]
)
def test_other_checkpoints_and_engines_have_no_blocks_to_keep_whole(changes):
    assert block_obstacle(asked(**changes), Degrees(tensor_parallel=8), "0.28") is None


def test_amds_kernels_of_sglang_take_any_share():
    amd = dataclasses.replace(hardware(8), gpu=catalogue().gpu("mi300x-192gb"))
    degrees = Degrees(tensor_parallel=8)
    assert block_obstacle(asked(hardware=amd, engine="sglang"), degrees, "0.5") is None
    assert block_obstacle(asked(hardware=amd), degrees, "0.28") is not None


def test_the_refusal_tells_the_features_and_the_way_out():
    obstacle = block_obstacle(asked(), Degrees(tensor_parallel=8), "0.28")
    assert obstacle is not None
    assert "1,536 features divided over 8 ranks have 192 each" in str(obstacle)
    assert "expert_parallel 8" in str(obstacle)


def test_the_search_leaves_out_what_cuts_blocks():
    for candidate in search_fleet((asked(),)).candidates:
        degrees = candidate.replica.degrees
        assert 1536 // degrees.expert_tensor_parallel % 128 == 0
