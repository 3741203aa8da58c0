"""Every folder of an engine answers what is asked of one."""

from __future__ import annotations

import pytest

from plimsoll.planners.serving.engines.engine import engine_named
from plimsoll.planners.serving.releases.tables import engine_folders, known_engines, read_table


def test_engines_are_listed_as_their_files_say_the_default_first():
    assert known_engines() == ("vllm", "sglang", "tensorrt-llm", "transformers")


@pytest.mark.parametrize("engine", known_engines())
def test_a_folder_has_its_engines_name_and_its_record(engine: str):
    assert engine_folders()[engine].name == engine.replace("-", "_")
    assert engine_named(engine).memory_note.endswith(".")


def test_what_an_engines_file_omits_is_inherited():
    # TensorRT-LLM's file names no bytes outside torch; vLLM's first revision does.
    assert read_table("tensorrt-llm")["revision"][0]["non_torch_gib"] == {"single": 0.7, "pipeline": 0.7, "tensor": 1.9}
    assert read_table("vllm")["revision"][0]["non_torch_gib"]["single"] == 0.13
