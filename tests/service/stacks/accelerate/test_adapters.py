"""Adapters and four-bit weights: accepted by peft and transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plimsoll.planners.questions import Lora
from plimsoll.service.artifacts.training import training_artifacts
from tests.service.stacks.launches import launch

LORA = Lora(rank=32, target_modules=("q_proj", "v_proj"), double_quantization=False)


def test_peft_reads_its_config_from_a_folder(tmp_path: Path):
    from peft import LoraConfig

    given = launch("accelerate", model_name="meta-llama/Llama-3.1-8B", asked={"method": "lora", "lora": LORA})
    content = training_artifacts(given).files["peft"]
    (tmp_path / "adapter_config.json").write_text(json.dumps(content), encoding="utf-8")
    found = LoraConfig.from_pretrained(str(tmp_path))
    assert (found.r, found.target_modules) == (32, {"q_proj", "v_proj"})
    assert found.base_model_name_or_path == "meta-llama/Llama-3.1-8B"
    assert "lora_dropout" not in content


def test_peft_drops_what_the_plan_does():
    lora = Lora(dropout=0.05)
    given = launch("accelerate", model_name="meta-llama/Llama-3.1-8B", asked={"method": "lora", "lora": lora})
    assert training_artifacts(given).files["peft"]["lora_dropout"] == 0.05


@pytest.mark.parametrize(
    ("stage", "precision", "compute", "storage"),
    [
        (0, "bf16-mixed", "bfloat16", "uint8"),
        (3, "bf16-mixed", "bfloat16", "bfloat16"),  # FSDP gathers tensors of one dtype
        (3, "fp16-mixed", "float16", "float16"),
        (0, "fp32", "float32", "uint8"),
    ],
)
def test_bitsandbytes_packs_as_the_plan_says(stage: int, precision: str, compute: str, storage: str):
    import torch
    from transformers import BitsAndBytesConfig

    asked = {"method": "qlora", "lora": LORA, "precision": precision}
    content = training_artifacts(launch("accelerate", data_parallel=8, zero_stage=stage, asked=asked)).files
    found = BitsAndBytesConfig.from_dict(dict(content["bitsandbytes"]))
    assert (found.quantization_method(), found.bnb_4bit_use_double_quant) == ("nf4", False)
    assert found.bnb_4bit_compute_dtype == getattr(torch, compute)
    assert found.bnb_4bit_quant_storage == getattr(torch, storage)


@pytest.mark.parametrize(
    ("method", "expected"), [("full", set()), ("lora", {"peft"}), ("qlora", {"peft", "bitsandbytes"})]
)
def test_a_plan_has_the_files_of_its_method(method: str, expected: set[str]):
    found = training_artifacts(launch("accelerate", asked={"method": method}))
    assert set(found.files) & {"peft", "bitsandbytes"} == expected
    assert not {"peft", "bitsandbytes"} & set(found.missing)
