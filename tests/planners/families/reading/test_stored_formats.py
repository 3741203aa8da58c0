"""A config tells the formats of its checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.families.reading.stored_formats import StoredFormats, stored_formats
from plimsoll.planners.ground.errors import InvalidModelConfig

FLOAT_8 = {"num_bits": 8, "type": "float"}


def groups(*weights: dict[str, Any], **fields: Any) -> dict[str, Any]:
    listed = {f"group_{index}": {"weights": one} for index, one in enumerate(weights)}
    return {"quant_method": "compressed-tensors", "config_groups": listed, **fields}


@pytest.mark.parametrize(
    ("stored", "weights"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 4}, "int4"),
        ({"quant_method": "AWQ", "bits": 4}, "int4"),
        ({"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_gptq"}, "int4"),
        ({**groups(FLOAT_8), "quant_method": "compressed_tensors"}, "fp8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        (groups(FLOAT_8), "fp8"),
        (groups({"num_bits": 4, "type": "int"}), "int4"),
        (groups({"num_bits": 4, "type": "float"}), "nvfp4"),
        (groups({"num_bits": 4, "type": "float"}, format="mxfp4-pack-quantized"), "mxfp4"),
        (groups({"num_bits": 4, "type": "int"}, ignore=["re:.*self_attn.*", "re:.*shared_experts.*"]), "int4-experts"),
        (groups({"num_bits": 4, "type": "int"}, ignore=["lm_head", "re:.*self_attn.*"]), "int4"),
        (groups({"num_bits": 4, "type": "int"}, ignore="lm_head"), "int4"),
    ],
)
def test_a_quantized_checkpoint_has_the_format_that_its_config_names(stored: dict[str, Any], weights: str) -> None:
    found = stored_formats({"quantization_config": stored})
    assert found is not None
    assert (found.weights, found.kv_cache) == (weights, None)


@pytest.mark.parametrize(("block", "side"), [([128, 128], 128), (None, None), ([1, 128], None)])
def test_square_blocks_of_scales_are_told_by_their_side(block: list[int] | None, side: int | None) -> None:
    stored = {"quant_method": "fp8", "weight_block_size": block}
    assert stored_formats({"quantization_config": stored}) == StoredFormats(weights="fp8", scale_block=side)


@pytest.mark.parametrize(
    "stored",
    [
        {"quant_method": "aqlm"},
        {"quant_method": "gptq", "bits": 3},
        {"quant_method": "bitsandbytes"},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
        groups(FLOAT_8, {"num_bits": 4, "type": "int"}),
        groups(),
    ],
)
def test_a_way_that_is_not_known_is_said_and_has_no_format(stored: dict[str, Any]) -> None:
    config = {**catalogue().model("gpt2").config, "quantization_config": stored}
    assert stored_formats(config) is None
    assumptions = describe_config(config, name="x").assumptions
    assert any("quantized in a way that is not read" in said for said in assumptions)


@pytest.mark.parametrize("stored", [None, {}])
def test_a_config_without_a_word_of_it_is_not_quantized(stored: object) -> None:
    assert stored_formats({"quantization_config": stored}) is None
    assert describe_config({**catalogue().model("gpt2").config, "quantization_config": stored}, name="x").parameters


@pytest.mark.parametrize(
    "fixed", [{"kv_cache_scheme": FLOAT_8}, {"kv_cache_scheme": "FP8"}, {"kv_cache_quant_algo": "FP8"}]
)
def test_scales_for_the_cache_fix_its_format(fixed: dict[str, Any]) -> None:
    stored = stored_formats({"quantization_config": groups(FLOAT_8, **fixed)})
    assert stored == StoredFormats(weights="fp8", kv_cache="fp8")


@pytest.mark.parametrize("stored", ["fp8", ["fp8"]])
def test_what_is_no_object_is_refused(stored: object) -> None:
    with pytest.raises(InvalidModelConfig) as refused:
        stored_formats({"quantization_config": stored})
    assert refused.value.pointer == "/model/config/quantization_config"


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("deepseek-ai/DeepSeek-V3", "fp8"),
        ("deepseek-v3", "fp8"),
        ("openai/gpt-oss-120b", "mxfp4"),
        # The text model's own section says it.
        ("moonshotai/Kimi-K2.5", "int4-experts"),
        # Its experts are in 4 bits, whatever `quant_method` says of the rest.
        ("deepseek-ai/DeepSeek-V4-Pro", "mxfp4-fp8"),
        ("nvidia/DeepSeek-V3.1-NVFP4", "nvfp4"),
    ],
)
def test_published_checkpoints_have_their_own_formats(name: str, weights: str) -> None:
    assert catalogue().model(name).stored_weights == weights
