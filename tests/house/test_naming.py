"""What is true of one stack, engine or family stands in its folder: nothing else names it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from plimsoll.planners.families import known_model_types
from plimsoll.planners.stacks.profile import stack_names
from tests.house import naming
from tests.house.naming import namings

# `ddp` and `reference` are words of the field, too; FSDP2's releases count on, and torchtitan is the program around it.
STACKS = (*(name.rstrip("2") for name in stack_names() if name not in {"ddp", "reference"}), "torchtitan")
ENGINES = ("vllm", "sglang", "tensorrt", "trtllm", "transformers", "tgi", "text-generation")
MODELS = ("llama", "qwen", "mistral", "deepseek")
# Rooms of the service that have nothing to do with launching or proving a plan.
GENERAL_SERVICE = (
    "access", "calibrations", "catalogue", "checkpoints", "ground", "jobs", "models", "observability", "persistence",
    "plans", "queue", "text",
)  # fmt: skip


# Room, the words it must not say, and the paths of the folders that may.
ROOMS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("planners", STACKS, r"^planners/(stacks/\w+|serving|families)/"),
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
        # An example names a stack, a field's help whose it is, and `deepspeed` is a field of TrainingArguments, too.
        r"^service/(?:(?:stacks|engines)/\w+/|worker/|requests/(?:examples|serving|foreign_names)\.)",
    ),
    ("service/worker", tuple(name for name in STACKS if name != "fsdp"), r"^service/worker/stacks/\w+/"),
    # A package of the same name is in front of every proof.
    ("service/worker", tuple(name for name in ENGINES if name != "transformers"), r"^service/worker/engines/\w+/"),
    *((f"service/{room}", MODELS, r"^$") for room in GENERAL_SERVICE),
)

# Room, and the paths of the files that may name model families: stacks of which models they have code of their own,
# requests that are examples, layers that are called as a family is, and `opt` for the optimizer.
ROOMS_WITHOUT_FAMILIES: tuple[tuple[str, str], ...] = (
    ("planners", r"^planners/(families|catalogue)/|^planners/stacks/model_code\.py$"),
    ("service", r"^service/stacks/\w+/|^service/text/labels\.py$"),
    ("api", r"^api/examples\.py$"),
    ("cli", r"^$"),
    ("plimsoll/client", r"^$"),
)


@pytest.mark.parametrize(("room", "words", "own"), ROOMS, ids=[room for room, *_ in ROOMS])
def test_only_its_own_folder_names_it(room: str, words: tuple[str, ...], own: str):
    assert list(namings(room, words, own=re.compile(own))) == []


@pytest.mark.parametrize(("room", "own"), ROOMS_WITHOUT_FAMILIES, ids=[room for room, _ in ROOMS_WITHOUT_FAMILIES])
def test_a_models_family_is_asked_for_its_traits_and_not_named(room: str, own: str):
    assert list(namings(room, known_model_types(), own=re.compile(own), whole=True)) == []


def test_a_family_named_in_code_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "judge.py").write_text('"""llama"""\nTYPES = ("llama", "llama-3.1-8b")\n')
    monkeypatch.setattr(naming, "ROOT", tmp_path)
    assert list(namings("room", ("llama",), own=re.compile(r"^$"), whole=True)) == ["room/judge.py:2: llama"]
