"""What is true of one stack, engine or family stands in its folder: nothing else names it."""

from __future__ import annotations

import re

import pytest

from tests.house.naming import namings

# Room, the words it must not say, and the paths of the folders that may.
ROOMS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "service",
        (
            "megatron",
            "deepspeed",
            "fsdp",
            "accelerate",
            "nanotron",
            "torchtitan",
            "torchtune",
            "litgpt",
            "composer",
            "atorch",
            "vllm",
            "sglang",
            "tensorrt",
            "trtllm",
            "text-generation",
            "transformers",
        ),
        # What a request enumerates, and the reader of shell text, are to be asked of records, too.
        r"^service/(?:(?:stacks|engines)/\w+/|worker/|requests/|measurements/start_comparison|workloads/commands/shell\.)",
    ),
    ("planners/layouts", ("megatron", "deepspeed", "fsdp", "accelerate", "nanotron", "torchtitan"), r"^$"),
)


@pytest.mark.parametrize(("room", "words", "own"), ROOMS, ids=[room for room, *_ in ROOMS])
def test_only_its_own_folder_names_it(room: str, words: tuple[str, ...], own: str):
    assert list(namings(room, words, own=re.compile(own))) == []
