"""One published model: its config facts, where they were read, and how they were checked."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from plimsoll.planners.families.reading.stored_formats import StoredFormats, stored_formats


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueModel:
    """A published model under its Hugging Face id.

    A model that was only ever described in a paper has an id under `paper/`.
    `config` holds the fields of its `config.json` that decide size and cost,
    under their own names. `published_parameters` is the number of elements its
    safetensors files hold, as its page prints it; a checkpoint that stores a
    tied head a second time counts it there twice. `verified` says how the facts
    were checked: `file` (the fields were read in the file that `source` names),
    `count` (they reproduce the published count exactly), or both, or `paper` (they
    are those of the paper's table that `source` names, of a model never published).

    Some `aliases` are quantized re-uploads of the same model: `formats` has what
    each of those holds. `stored` is that of the name the model was found by: for its
    own id and plain aliases what its config says, None where that is not quantized.
    """

    id: str
    aliases: tuple[str, ...]
    config: Mapping[str, Any]
    source: str
    published_parameters: int | None
    verified: str
    formats: Mapping[str, StoredFormats] = field(default_factory=dict)
    stored: StoredFormats | None = None

    @property
    def stored_weights(self) -> str | None:
        """Return the format of the weights in the checkpoint asked for, None where its name says nothing of it."""
        return None if self.stored is None else self.stored.weights

    def found_as(self, name: str) -> CatalogueModel:
        """Return the model as that one of its names means it."""
        stored = self.formats.get(name)
        return self if stored is None else dataclasses.replace(self, stored=stored)


def read_model(content: bytes) -> CatalogueModel:
    """Return the model that a catalogue file describes.

    An alias is a name, or for a quantized re-upload an object of its `id` and
    the formats of its `weights` and `kv_cache`, and the `scale_block` of its scales.
    """
    record = json.loads(content)
    reuploads = [alias for alias in record["aliases"] if isinstance(alias, dict)]
    return CatalogueModel(
        id=record["id"],
        aliases=tuple(alias["id"] if isinstance(alias, dict) else alias for alias in record["aliases"]),
        config=record["config"],
        source=record["source"],
        published_parameters=record["published_parameters"],
        verified=record["verified"],
        stored=stored_formats(record["config"]),
        formats={
            alias["id"]: StoredFormats(
                weights=alias["weights"], kv_cache=alias.get("kv_cache"), scale_block=alias.get("scale_block")
            )
            for alias in reuploads
        },
    )
