"""Which layers of a hybrid mix tokens by attention and which through a state of fixed size."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from plimsoll.planners.families.reading.config import ConfigReader


class MixerKind(StrEnum):
    """What mixes tokens in a layer, under the names of `layer_types`."""

    LINEAR = "linear_attention"
    FULL = "full_attention"


# The names that configs published before transformers 5 use too.
KINDS_BY_NAME: Mapping[str, MixerKind] = {
    "attention": MixerKind.FULL,
    "full_attention": MixerKind.FULL,
    "linear_attention": MixerKind.LINEAR,
    "mamba": MixerKind.LINEAR,
}


def mixer_kinds(config: ConfigReader, key: str, num_layers: int) -> list[MixerKind] | None:
    """Return what mixes each layer's tokens as the list under `key` says, or None where it is absent."""
    names = config.strings(key)
    config.must_be(key, *KINDS_BY_NAME)
    if names is None:
        return None
    if len(names) != num_layers:
        raise config.error(key, f"'{key}' names {len(names)} layers of {num_layers}.")
    return [KINDS_BY_NAME[name] for name in names]


def mixers_at(indices: tuple[int, ...], num_layers: int) -> list[MixerKind]:
    """Return full attention at `indices` and a recurrence elsewhere."""
    attending = set(indices)
    return [MixerKind.FULL if layer in attending else MixerKind.LINEAR for layer in range(num_layers)]
