"""nanotron's YAML, held against a golden file: its own reader cannot be installed beside today's torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from plimsoll.service.artifacts.training import training_artifacts
from plimsoll.service.launch.training import TrainingLaunch
from tests.service.stacks.launches import LLAMA_31_8B, launch

GOLDEN = Path(__file__).parents[1] / "golden" / "nanotron.yaml"
LLAMA_2_7B: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-05, "max_position_embeddings": 4096,
}  # fmt: skip


def plan(**changes: Any) -> TrainingLaunch:
    asked = {"sequence_length": 4096, **changes.pop("asked", {})}
    return launch("nanotron", **{"config": LLAMA_2_7B, **changes}, asked=asked)


def read(given: TrainingLaunch) -> dict[str, Any]:
    content = training_artifacts(given).files["nanotron"]
    assert isinstance(content, str)
    found: dict[str, Any] = yaml.safe_load(content)
    return found


def test_the_file_is_the_one_that_was_read_beside_nanotrons_own_classes():
    given = plan(
        data_parallel=2, tensor_parallel=2, pipeline_parallel=2, sequence_parallel=True, zero_stage=1,
        micro_batch_size=2, recompute="full", steps=500,
    )  # fmt: skip
    assert training_artifacts(given).files["nanotron"] == GOLDEN.read_text(encoding="utf-8").rstrip("\n")


def test_the_batch_multiplies_out():
    found = read(plan(data_parallel=4, tensor_parallel=2, micro_batch_size=2))
    tokens, parallelism = found["tokens"], found["parallelism"]
    assert tokens["micro_batch_size"] * tokens["batch_accumulation_per_replica"] * parallelism["dp"] == 64
    assert tokens["sequence_length"] == 4096


@pytest.mark.parametrize(("sequence_parallel", "mode"), [(True, "REDUCE_SCATTER"), (False, "ALL_REDUCE")])
def test_sequence_parallelism_is_a_mode(sequence_parallel: bool, mode: str):
    found = read(plan(tensor_parallel=2, sequence_parallel=sequence_parallel))
    assert found["parallelism"]["tp_mode"] == mode


def test_a_plan_without_a_budget_takes_a_thousand_steps():
    assert read(plan())["tokens"]["train_steps"] == 1000


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"config": {**LLAMA_2_7B, "model_type": "mistral"}}, "own model is Llama"),
        ({"config": {**LLAMA_2_7B, "mlp_bias": True}}, "no biases"),
        ({"config": LLAMA_31_8B}, "does not scale rotary positions"),
        ({"asked": {"attention": "eager"}}, "needs flash attention"),
        ({"asked": {"gradient_dtype": "bf16"}}, "gradient_dtype bf16"),
    ],
)
def test_what_nanotron_cannot_be_told_is_not_written(changes: dict[str, Any], reason: str):
    found = training_artifacts(plan(**changes))
    assert "nanotron" not in found.files
    assert reason in " ".join(found.missing["nanotron"])
