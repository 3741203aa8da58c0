"""Images by their names, whatever registry or mirror they come from."""

from __future__ import annotations

import re
from collections.abc import Collection


def is_one_of(image: str, names: Collection[str]) -> bool:
    """Return whether an image has one of the names, which a mirror puts folders of its own in front of."""
    parts = image_name(image).split("/")
    return any("/".join(parts[place:]) in names for place in range(len(parts) - 1))


def image_name(image: str) -> str:
    """Return an image's name without its registry, tag and digest."""
    name = image.partition("@")[0]
    head, _, last = name.rpartition("/")
    parts = [*(head.split("/") if head else []), last.partition(":")[0]]
    # A first part with a dot or a port is a registry.
    return "/".join(parts[1:] if len(parts) > 1 and re.search(r"[.:]|^localhost$", parts[0]) else parts)
