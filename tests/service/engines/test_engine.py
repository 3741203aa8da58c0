"""What containers start by the records of engines."""

from __future__ import annotations

import pytest

from plimsoll.planners.serving.releases.tables import known_engines
from plimsoll.service.engines.engine import engines, started_programs
from tests.service.admission.reviews import a_plain_container


def words(*command: str, image: str = "x", args: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    container = a_plain_container(command=command, image=image, args=args)
    return [program.words for program in started_programs(container)]


def test_every_engine_that_is_planned_is_known_here_and_no_other():
    assert set(engines()) == set(known_engines())


def test_the_image_says_what_starts_without_a_command():
    assert words(image="docker.io/vllm/vllm-openai:v0.19.0", args=("--model", "m")) == [
        ("vllm", "serve", "--model", "m")
    ]


def test_a_command_stands_in_the_place_of_what_the_image_starts():
    assert words("sglang", "serve", image="vllm/vllm-openai") == [("sglang", "serve")]


@pytest.mark.parametrize(
    "image",
    [
        "ghcr.io/huggingface/text-generation-inference:3.3.6",
        "us-docker.pkg.dev/x/gcr.io/huggingface-text-generation-inference-cu124.2-3.ubuntu2204.py311",
    ],
)
def test_the_launchers_images_start_it(image: str):
    assert words(image=image, args=("--model-id", "m")) == [("text-generation-launcher", "--model-id", "m")]


def test_a_launcher_starts_the_program_behind_it_unchanged():
    assert words("trtllm-llmapi-launch", "trtllm-serve", "m") == [("trtllm-serve", "m")]
