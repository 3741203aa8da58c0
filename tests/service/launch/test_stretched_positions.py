"""Positions stretched beyond a checkpoint's own, as each engine is told of them."""

from __future__ import annotations

import dataclasses
import json
import shlex
from typing import Any

import pytest
import yaml

from plimsoll.planners.questions import RopeScaling
from plimsoll.service.artifacts.serving import serving_artifacts
from plimsoll.service.launch.checkpoint import Checkpoint, stated_rope_theta
from tests.service.engines.documented_parsers import parsed
from tests.service.engines.serving_plans import CHECKPOINT, hardware, placement, serving_plan

YARN = RopeScaling(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768)
KNOWN = dataclasses.replace(CHECKPOINT, rope_theta=1e6)
SCALING = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def made(
    engine: str, version: str, checkpoint: Checkpoint = KNOWN, scaling: RopeScaling | None = YARN
) -> dict[str, Any]:
    plan = serving_plan(engine=engine, engine_version=version, rope_scaling=scaling)
    return serving_artifacts(checkpoint, plan, hardware(), placement(), fits=True).files


def told(program: str, version: str, option: str, **parts: Any) -> Any:
    given = parsed(program, shlex.split(made(program, version, **parts)[program]), version)
    return json.loads(given[option]) if option in given else None


@pytest.mark.parametrize(("version", "name"), [("0.11", "rope_scaling"), ("0.12", "rope_parameters")])
def test_vllm_is_told_by_the_name_its_version_reads(version: str, name: str):
    theta = {"rope_theta": 1e6} if name == "rope_parameters" else {}
    assert told("vllm", version, "hf_overrides") == {name: {**theta, **SCALING}}


def test_sglang_is_told_the_longest_context_too():
    changes = told("sglang", "0.5.6", "json_model_override_args")
    assert changes == {"rope_scaling": SCALING, "max_position_embeddings": 1024}
    assert "rope_parameters" in told("sglang", "0.5.10", "json_model_override_args")


def test_a_scaling_without_original_positions_stretches_the_configs_own():
    linear = RopeScaling(rope_type="linear", factor=2.0)
    changes = told("sglang", "0.5.6", "json_model_override_args", scaling=linear)
    assert changes == {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}


def test_nothing_is_told_where_nothing_is_stretched():
    assert told("vllm", "0.33", "hf_overrides", scaling=None) is None
    assert told("sglang", "0.5.23", "json_model_override_args", scaling=None) is None


def test_tensorrt_llm_reads_it_from_its_file_since_1_2():
    options = yaml.safe_load(made("tensorrt-llm", "1.2")["trtllm-options.yaml"])
    assert options["model_kwargs"] == {"rope_scaling": SCALING, "max_position_embeddings": 1024}
    assert made("tensorrt-llm", "1.1") == {}
    assert "model_kwargs" not in yaml.safe_load(made("tensorrt-llm", "1.1", scaling=None)["trtllm-options.yaml"])


@pytest.mark.parametrize(("version", "name"), [("4.57", "rope_scaling"), ("5.23", "rope_parameters")])
def test_transformers_takes_it_as_an_argument(version: str, name: str):
    found = made("transformers", version)
    assert found["transformers"][name]["factor"] == 4.0
    assert "text-generation-inference" not in found


def test_transformers_itself_reads_those_parameters():
    from transformers import Qwen3Config

    arguments = made("transformers", "5.23")["transformers"]
    config = Qwen3Config(rope_parameters=arguments["rope_parameters"], max_position_embeddings=131072)
    assert config.rope_parameters == {"rope_theta": 1e6, **SCALING}


@pytest.mark.parametrize(("engine", "version"), [("vllm", "0.33"), ("sglang", "0.5.23"), ("transformers", "5.23")])
def test_without_the_wavelengths_base_there_is_no_launch_file(engine: str, version: str):
    assert made(engine, version, checkpoint=CHECKPOINT) == {}
    given = dataclasses.replace(YARN, rope_theta=1e6)
    assert made(engine, version, checkpoint=CHECKPOINT, scaling=given)


@pytest.mark.parametrize(
    ("config", "theta"),
    [
        ({}, None),
        ({"rope_theta": 5}, 5.0),
        ({"rope_parameters": {"rope_theta": 6.5}}, 6.5),
        ({"text_config": {"rope_theta": 7}}, 7.0),
        ({"rope_theta": "8"}, None),
    ],
)
def test_the_base_is_read_where_a_config_states_it(config: dict[str, Any], theta: float | None):
    assert stated_rope_theta(config) == theta
