"""What is true of one stack, engine or family stands in its folder: nothing else names it."""

from __future__ import annotations

import re

import pytest

from tests.house.naming import namings

STACKS = (
    "accelerate", "atorch", "composer", "deepspeed", "fsdp", "litgpt", "megatron", "nanotron", "torchtitan",
    "torchtune",
)  # fmt: skip
ENGINES = ("vllm", "sglang", "tensorrt", "trtllm", "transformers", "tgi", "text-generation")
MODELS = ("llama", "qwen", "mistral", "deepseek")
# Rooms of the service that have nothing to do with launching or proving a plan.
GENERAL_SERVICE = (
    "access", "calibrations", "catalogue", "checkpoints", "ground", "jobs", "models", "observability", "persistence",
    "plans", "queue", "text",
)  # fmt: skip

# Room, the words it must not say, and the paths of the folders that may.
ROOMS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("planners/layouts", STACKS, r"^$"),
    ("planners/serving", ENGINES, r"^planners/serving/engines/\w+/"),
    # Placement and formats cite the engines whose code they were read in; models are described as a library has them.
    (
        "planners",
        ("vllm", "sglang", "tensorrt", "trtllm", "tgi"),
        r"^planners/(serving/engines/\w+|sharding|quantization)/",
    ),
    (
        "service",
        (*STACKS, *ENGINES),
        # What a request enumerates, and the reader of shell text, are to be asked of records, too.
        r"^service/(?:(?:stacks|engines)/\w+/|worker/|requests/|measurements/start_comparison|workloads/commands/shell\.)",
    ),
    *((f"service/{room}", MODELS, r"^$") for room in GENERAL_SERVICE),
)


@pytest.mark.parametrize(("room", "words", "own"), ROOMS, ids=[room for room, *_ in ROOMS])
def test_only_its_own_folder_names_it(room: str, words: tuple[str, ...], own: str):
    assert list(namings(room, words, own=re.compile(own))) == []
