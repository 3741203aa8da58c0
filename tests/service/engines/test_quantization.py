from __future__ import annotations

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.service.engines.engine import engines, serving_launch
from plimsoll.service.engines.quantization import conflict, stored_methods
from plimsoll.service.ground.settings import Settings
from plimsoll.service.models.resolving import ModelResolver
from tests.service.admission.reviews import a_plain_container

RESOLVER = ModelResolver(catalogue(), Settings())


@pytest.mark.parametrize(
    ("model", "methods"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", set()),
        ("deepseek-ai/DeepSeek-R1", {"fp8"}),
        ("moonshotai/Kimi-K2.5", {"compressed-tensors"}),
        # mxfp4 and modelopt take the place of what is asked for.
        ("openai/gpt-oss-20b", set()),
        ("nvidia/DeepSeek-R1-NVFP4", set()),
        # Of re-uploads only the name and the format are known.
        ("Qwen/Qwen3-32B-FP8", {"fp8", "compressed-tensors"}),
    ],
)
def test_a_checkpoint_is_stored_in_the_scheme_of_its_config(model: str, methods: set[str]):
    assert stored_methods(model, RESOLVER.resolve(model)) == methods


@pytest.mark.parametrize(
    ("asked", "stored", "is_refused"),
    [
        ("bitsandbytes", {"fp8"}, True),
        ("awq", {"fp8"}, True),
        ("fp8", {"compressed-tensors"}, True),
        ("fp8", {"fp8"}, False),
        ("awq_marlin", {"awq", "compressed-tensors"}, False),
        ("gptq", {"awq", "compressed-tensors"}, True),
        ("bitsandbytes", set(), False),
        (None, {"fp8"}, False),
        # Schemes that convert what is stored, or are not compared here.
        ("moe_wna16", {"gptq"}, False),
    ],
)
def test_another_scheme_than_the_stored_one_is_refused(asked: str | None, stored, is_refused: bool):
    assert (conflict(asked, frozenset(stored)) is not None) is is_refused


def test_some_engines_compare_schemes():
    assert {name for name, engine in engines().items() if engine.compares_schemes} == {"vllm", "sglang"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("vllm serve deepseek-ai/DeepSeek-R1 -q awq", "awq"),
        ("vllm serve /models/DeepSeek-R1 -q awq", None),
        ("vllm serve DeepSeek-R1 -q awq", None),
        ("vllm serve deepseek-ai/DeepSeek-R1 -q awq --revision awq-branch", None),
    ],
)
def test_only_the_hubs_own_checkpoint_is_known(line: str, expected: str | None):
    assert serving_launch(tuple(line.split()), a_plain_container(), gpus=8).quantization == expected
