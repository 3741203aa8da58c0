from __future__ import annotations

import pytest

from plimsoll.service.workloads.commands.images import image_name, is_one_of


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("vllm/vllm-openai:v0.19.0", "vllm/vllm-openai"),
        ("docker.io/vllm/vllm-openai", "vllm/vllm-openai"),
        ("localhost:5000/vllm/vllm-openai:x@sha256:00", "vllm/vllm-openai"),
        ("python:3.11", "python"),
        ("", ""),
    ],
)
def test_an_images_name_is_without_registry_tag_and_digest(image: str, name: str):
    assert image_name(image) == name


@pytest.mark.parametrize(
    ("image", "is_known"),
    [
        ("a/b:1", True),
        ("registry.example/mirror/a/b@sha256:0", True),
        ("localhost:5000/a/b", True),
        ("b:1", False),
        ("x/b", False),
        ("a/b/c", False),
    ],
)
def test_an_image_is_known_under_a_mirrors_name_too(image: str, is_known: bool):
    assert is_one_of(image, {"a/b"}) is is_known
