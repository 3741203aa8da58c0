"""One published model: its config facts, where they were read, and how they were checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueModel:
    """A published model under its Hugging Face id.

    `config` holds the fields of its `config.json` that decide size and cost,
    under their own names. `published_parameters` is the number of elements its
    safetensors files hold, as its page prints it; a checkpoint that stores a
    tied head a second time counts it there twice. `verified` says how the facts
    were checked: `file` (the fields were read in the file that `source` names),
    `count` (they reproduce the published count exactly), or both.
    """

    id: str
    aliases: tuple[str, ...]
    config: Mapping[str, Any]
    source: str
    published_parameters: int | None
    verified: str


def read_model(content: bytes) -> CatalogueModel:
    """Return the model that a catalogue file describes."""
    record = json.loads(content)
    return CatalogueModel(
        id=record["id"],
        aliases=tuple(record["aliases"]),
        config=record["config"],
        source=record["source"],
        published_parameters=record["published_parameters"],
        verified=record["verified"],
    )
