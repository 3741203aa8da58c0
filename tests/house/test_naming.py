"""What is true of one stack, engine or family stands in its folder: nothing else names it."""

from __future__ import annotations

import re

import pytest

from tests.house.naming import namings

SERVING_ENGINES = ("vllm", "sglang", "tensorrt", "trtllm", "transformers", "tgi")
NAMES = (
    "accelerate", "atorch", "composer", "deepspeed", "fsdp", "litgpt", "megatron", "nanotron", "torchtitan",
    "torchtune", "vllm", "sglang", "tensorrt", "tgi", "llama", "qwen", "mistral", "deepseek",
)  # fmt: skip
GENERAL_SERVICE = (
    "access", "calibrations", "catalogue", "checkpoints", "ground", "jobs", "models", "observability", "persistence",
    "plans", "queue", "text",
)  # fmt: skip

TRAINING_STACKS = (
    "accelerate", "atorch", "composer", "deepspeed", "litgpt", "megatron", "nanotron", "torchtitan", "torchtune",
)  # fmt: skip

# Room, the words it must not say, and the paths of the folders that may.
ROOMS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("planners/serving", SERVING_ENGINES, r"^planners/serving/engines/\w+/"),
    ("planners", TRAINING_STACKS, r"^planners/(stacks/\w+|serving|families)/"),
    ("planners/layouts", ("megatron", "deepspeed", "fsdp", "accelerate", "nanotron", "torchtitan"), r"^$"),
    *((f"service/{room}", NAMES, r"^$") for room in GENERAL_SERVICE),
)


@pytest.mark.parametrize(("room", "words", "own"), ROOMS, ids=[room for room, *_ in ROOMS])
def test_only_its_own_folder_names_it(room: str, words: tuple[str, ...], own: str):
    assert list(namings(room, words, own=re.compile(own))) == []
