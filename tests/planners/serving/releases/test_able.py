"""Which engines run which models on which cards, as their registries and documents say."""

from __future__ import annotations

import dataclasses

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families.registry import known_model_types
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.serving.planning import plan_serving
from plimsoll.planners.serving.releases.able import able_profile
from plimsoll.planners.serving.releases.profile import engine_profile, known_versions
from plimsoll.planners.serving.releases.served_models import model_obstacle, runs_code_of
from plimsoll.planners.serving.releases.tables import known_engines, read_table
from plimsoll.planners.serving.settings.settings import resolve_settings
from tests.planners.serving.factories import hardware, model, question

H100, V100, T4, MI300X = "h100-sxm-80gb", "v100-sxm-32gb", "t4-16gb", "mi300x-192gb"


def able(engine: str, version: str | None, model_type: str = "llama", gpu: str = H100) -> str:
    profile = able_profile(engine, version, model_type=model_type, gpu=catalogue().gpu(gpu))
    return profile.version


def refused(engine: str, version: str | None, model_type: str = "llama", gpu: str = H100) -> InvalidQuestion:
    with pytest.raises(InvalidQuestion) as caught:
        able(engine, version, model_type, gpu)
    return caught.value


@pytest.mark.parametrize(
    ("engine", "version", "model_type"),
    [
        # vllm/model_executor/models/registry.py: without them at 0.8.5, 0.9.2; _PREVIOUSLY_SUPPORTED_MODELS at 0.33.
        ("vllm", "0.8", "qwen3_next"),
        ("vllm", "0.9", "gpt_oss"),
        ("vllm", "0.11", "mllama"),
        ("vllm", "0.24", "dots1"),
        ("vllm", "0.24", "bamba"),
        ("vllm", "0.24", "minimax"),
        ("vllm", "0.24", "qwen"),
        # sglang/srt/models: deepseek_v4.py came with 0.5.12.
        ("sglang", "0.5.11", "deepseek_v4"),
    ],
)
def test_a_release_that_lacks_the_model_is_refused_with_those_that_have_it(engine, version, model_type):
    error = refused(engine, version, model_type)
    assert error.pointer == "/serving/engine_version"
    assert f"{engine} {version} has no code for {model_type} models" in error.detail
    assert "transformers 5.23" in error.detail


@pytest.mark.parametrize(
    ("engine", "version", "model_type"),
    [
        ("vllm", "0.10", "qwen3_next"),
        ("vllm", "0.10", "gpt_oss"),
        ("vllm", "0.10", "mllama"),
        ("vllm", "0.23", "dots1"),
        ("sglang", "0.5.12", "deepseek_v4"),
    ],
)
def test_the_first_and_the_last_release_that_have_a_model_run_it(engine, version, model_type):
    assert able(engine, version, model_type) == version


def test_an_engine_no_release_of_which_has_the_model_is_refused_by_its_name():
    error = refused("vllm", None, "t5")
    assert error.pointer == "/serving/engine"
    assert "vllm has no code for t5 models in any release. Able are tensorrt-llm" in error.detail


def test_a_version_left_away_is_the_newest_that_has_the_model():
    assert able("vllm", None, "dots1") == "0.23"
    assert able("vllm", None, "llama") == known_versions("vllm")[-1]
    assumptions = resolve_settings(
        question(dataclasses.replace(model(), model_type="dots1"), engine_version=None)
    ).assumptions
    assert "engine_version 0.23, the newest that runs this model on this card." in assumptions


def test_a_model_of_which_nothing_is_known_is_not_refused():
    assert all(able(engine, None, "unheard_of") for engine in known_engines())


@pytest.mark.parametrize(
    ("engine", "gpu", "words"),
    [
        # TensorRT-LLM is NVIDIA's own, for Ampere and younger; SGLang "only supports sm75 and above".
        ("tensorrt-llm", MI300X, "runs on NVIDIA's GPUs only"),
        ("tensorrt-llm", T4, "needs compute capability 8.0 or higher"),
        ("tensorrt-llm", V100, "needs compute capability 8.0 or higher"),
        ("sglang", V100, "needs compute capability 7.5 or higher"),
    ],
)
def test_cards_that_an_engine_does_not_run_on_are_refused_with_engines_that_do(engine, gpu, words):
    error = refused(engine, None, gpu=gpu)
    assert words in error.detail
    assert "vllm" in error.detail.partition("Able are")[2]


def test_vllm_left_volta_with_0_20():
    # docs/getting_started/installation/gpu.cuda.inc.md: 7.0 or higher at 0.19.0, 7.5 at 0.20.0.
    assert able("vllm", None, gpu=V100) == "0.19"
    assert refused("vllm", "0.20", gpu=V100).rules == ("engine-runs-on-card",)


@pytest.mark.parametrize(
    ("gpu", "changes", "words"),
    [
        # get_min_capability: fp8.py 80 at 0.13 and 75 at 0.14; mxfp4.py 80.
        (T4, {"engine_version": "0.13", "weights": "fp8", "kv_cache": "fp16"}, "weights fp8 from compute capability"),
        (V100, {"engine_version": "0.19", "weights": "fp8", "kv_cache": "fp16"}, "weights fp8 from compute capability"),
        (T4, {"engine_version": "0.33", "weights": "mxfp4", "kv_cache": "fp16"}, "weights mxfp4 from compute"),
        (T4, {"engine_version": "0.33", "weights": "int4", "kv_cache": "fp8"}, "kv_cache fp8 from compute capability"),
        (T4, {"engine_version": "0.33", "weights": "int4", "kv_cache": "bf16"}, "Ask for kv_cache fp16"),
    ],
)
def test_formats_that_an_engine_does_not_take_on_a_card_are_refused(gpu, changes, words):
    with pytest.raises(InvalidQuestion, match=words):
        resolve_settings(question(hardware=hardware(gpu=catalogue().gpu(gpu)), **changes))


@pytest.mark.parametrize(
    ("version", "engine", "is_refused"), [("0.8", "vllm", False), ("0.9", "vllm", True), (None, "sglang", False)]
)
def test_vllm_refuses_gemma_2_in_fp16(version, engine, is_refused):
    # vllm/config/model.py, _FLOAT16_NOT_SUPPORTED_MODELS, absent at 0.8.5; SGLang warns.
    gemma = dataclasses.replace(model(), model_type="gemma2")
    asked = question(gemma, engine=engine, engine_version=version, weights="fp16", kv_cache="fp16")
    if not is_refused:
        assert resolve_settings(asked).weights.name == "fp16"
        return
    with pytest.raises(InvalidQuestion, match="Ask for weights bf16 or fp32"):
        resolve_settings(asked)


def test_transformers_own_code_is_told_from_the_engines():
    # vllm/model_executor/models/registry.py: olmo.py until 0.25, TransformersForCausalLM from 0.26.
    found = [runs_code_of(engine_profile("vllm", version), "olmo") for version in ("0.25", "0.26")]
    assert found == [None, "transformers"]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_the_tables_name_versions_and_model_types_that_are_known(engine):
    table = dict(read_table(engine)["models"])
    absent, parts = table.pop("absent"), [*table.pop("runs_code_of", {}).values()]
    parts += table.values()
    assert {*absent, *(name for part in parts for name in part)} <= set(known_model_types())
    assert {version for part in parts for version in part.values()} <= set(known_versions(engine))


def test_every_model_of_the_catalogue_has_an_engine_that_is_not_known_to_lack_it():
    types = {entry.config["model_type"] for entry in catalogue().models}
    newest = [engine_profile(engine, None) for engine in known_engines()]
    assert all(any(model_obstacle(profile, kind) is None for profile in newest) for kind in types)


@pytest.mark.parametrize(("version", "is_said"), [("0.10", True), ("0.14", True), ("0.15", False)])
def test_weights_that_are_loaded_whole_before_they_are_quantized_are_told_of(version, is_said):
    # Llama-3.1-8B has 8.03 billion elements: 15.0 GiB in 16 bits, which vLLM up to 0.14 holds until the last is loaded.
    answer = plan_serving(question(engine_version=version, weights="fp8"))
    assert any("each GPU holds 15.0 GiB" in note for note in answer.assumptions) is is_said


def test_a_model_that_runs_by_transformers_code_is_said_to_be_unmeasured():
    olmo = dataclasses.replace(model(), model_type="olmo")
    answer = plan_serving(question(olmo, engine_version="0.26"))
    assert any("runs transformers'" in note for note in answer.assumptions)
