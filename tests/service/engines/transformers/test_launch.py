"""Arguments of from_pretrained, read by transformers itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plimsoll.service.engines.transformers.launch import from_pretrained_arguments
from plimsoll.service.launch.checkpoint import Checkpoint
from plimsoll.service.launch.serving import NoOption
from tests.service.engines.serving_plans import CHECKPOINT, serving_plan


@pytest.mark.parametrize(
    ("weights", "bits", "compute"), [("nf4", 4, "bfloat16"), ("int8", 8, None), ("bf16", None, None)]
)
def test_bitsandbytes_is_configured_as_planned(weights: str, bits: int | None, compute: str | None):
    from transformers.quantizers.auto import AutoQuantizationConfig

    arguments = from_pretrained_arguments(CHECKPOINT, serving_plan(engine="transformers", weights=weights))
    assert arguments["dtype"] == "bfloat16"
    if bits is None:
        assert "quantization_config" not in arguments
        return
    config = AutoQuantizationConfig.from_dict(json.loads(json.dumps(arguments["quantization_config"])))
    assert (config.load_in_4bit, config.load_in_8bit) == (bits == 4, bits == 8)
    if compute is not None:
        assert (config.bnb_4bit_quant_type, str(config.bnb_4bit_compute_dtype)) == ("nf4", f"torch.{compute}")


def test_transformers_loads_a_model_by_the_arguments(tmp_path: Path):
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=128, **sizes)).save_pretrained(tmp_path)
    plan = serving_plan(engine="transformers", weights="nf4")
    arguments = from_pretrained_arguments(Checkpoint(name=str(tmp_path)), plan)
    # There is no GPU here; everything else is as it was written.
    model = AutoModelForCausalLM.from_pretrained(**{**arguments, "device_map": "cpu"})
    assert type(model.model.layers[0].self_attn.q_proj).__name__ == "Linear4bit"
    assert str(model.lm_head.weight.dtype) == "torch.bfloat16"


@pytest.mark.parametrize(
    ("layout", "argument", "value"),
    [
        ({}, "device_map", "cuda:0"),
        ({"pipeline_parallel": 2}, "device_map", "auto"),
        ({"tensor_parallel": 2}, "tp_plan", "auto"),
    ],
)
def test_gpus_are_divided_as_planned(layout: dict[str, int], argument: str, value: str):
    arguments = from_pretrained_arguments(CHECKPOINT, serving_plan(engine="transformers", layout=layout))
    assert arguments[argument] == value


def test_a_quantized_checkpoint_says_itself_how_it_is_quantized():
    checkpoint = Checkpoint(name="org/tiny-AWQ", stored_weights="int4")
    arguments = from_pretrained_arguments(checkpoint, serving_plan(engine="transformers", weights="int4"))
    assert "quantization_config" not in arguments
    with pytest.raises(NoOption, match="stored in int4"):
        from_pretrained_arguments(checkpoint, serving_plan(engine="transformers", weights="nf4"))


@pytest.mark.parametrize("change", [{"weights": "fp8"}, {"weights": "nf4", "kv_cache": "int8"}])
def test_what_transformers_cannot_load_has_no_arguments(change: dict[str, str]):
    with pytest.raises(NoOption, match=r"no option that quantizes|no cache in int8"):
        from_pretrained_arguments(CHECKPOINT, serving_plan(engine="transformers", **change))
