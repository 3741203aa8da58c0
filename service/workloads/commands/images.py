"""What an image starts where the object names no command, by the image's name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from plimsoll.service.workloads.objects.pods import Container

# By the image's name without registry and tag.
ENTRYPOINTS: Mapping[str, tuple[str, ...]] = {
    "vllm/vllm-openai": ("vllm", "serve"),
    "vllm/vllm-openai-rocm": ("vllm", "serve"),
    # The production stack's build of vLLM's image (docker/Dockerfile of LMCache).
    "lmcache/vllm-openai": ("vllm", "serve"),
}
# Clouds publish the launcher's image under names of their own, which hold its name.
TGI_IMAGE, TGI_ENTRYPOINT = "text-generation-inference", ("text-generation-launcher",)
Value = TypeVar("Value")


def entrypoint(container: Container) -> tuple[str, ...]:
    """Return the words that a container starts with: its command, or what its image is known to start."""
    if container.command:
        return container.command
    if TGI_IMAGE in image_name(container.image):
        return TGI_ENTRYPOINT
    return known_image(container.image, ENTRYPOINTS) or ()


def known_image(image: str, table: Mapping[str, Value]) -> Value | None:
    """Return what a table says of an image by its name, which a mirror puts folders of its own in front of."""
    parts = image_name(image).split("/")
    names = ("/".join(parts[place:]) for place in range(len(parts) - 1))
    return next((table[name] for name in names if name in table), None)


def image_name(image: str) -> str:
    """Return an image's name without its registry, tag and digest."""
    name = image.partition("@")[0]
    head, _, last = name.rpartition("/")
    parts = [*(head.split("/") if head else []), last.partition(":")[0]]
    # A first part with a dot or a port is a registry.
    return "/".join(parts[1:] if len(parts) > 1 and re.search(r"[.:]|^localhost$", parts[0]) else parts)
