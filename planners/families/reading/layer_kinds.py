"""What configs say of each layer: what mixes its tokens, whether its feed-forward is dense."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader

Entry = TypeVar("Entry", str, int)


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


class DenseLayers(StrEnum):
    """Which layers have a dense feed-forward in place of the mixture."""

    NONE = "none"
    FIRST = "first"  # the first `first_k_dense_replace`
    BETWEEN_STEPS = "between_steps"  # all but every `decoder_sparse_step`-th, and those of `mlp_only_layers`


def number_of_layers(config: ConfigReader, *, default: int | None = None) -> int:
    """Return the number of layers under the name that nearly every family uses."""
    return config.size("num_hidden_layers", default=default, most=MOST_LAYERS)


def named_layers(
    config: ConfigReader, key: str, num_layers: int, *known: str, may_go_on: bool = False
) -> tuple[str, ...] | None:
    """Return what the list under `key` calls each layer, None where it is absent; raise for another length or word.

    A list that may go on says more of the layers for multi-token prediction, which is cut off.
    """
    names = config.strings(key)
    config.must_be(key, *known)
    return None if names is None else _of_layers(config, key, names, num_layers, may_go_on=may_go_on)


def numbered_layers(
    config: ConfigReader, key: str, num_layers: int, *known: int, may_go_on: bool = False
) -> tuple[int, ...] | None:
    """Return the number that the list under `key` has for each layer; see `named_layers`."""
    numbers = config.whole_numbers(key)
    config.must_be(key, *known)
    return None if numbers is None else _of_layers(config, key, numbers, num_layers, may_go_on=may_go_on)


def _of_layers(
    config: ConfigReader, key: str, listed: tuple[Entry, ...], num_layers: int, *, may_go_on: bool
) -> tuple[Entry, ...]:
    if len(listed) < num_layers or (len(listed) > num_layers and not may_go_on):
        raise config.error(key, f"'{key}' names {len(listed)} layers of {num_layers}.")
    return listed[:num_layers]


def mixer_kinds(config: ConfigReader, key: str, num_layers: int) -> list[MixerKind] | None:
    """Return what mixes each layer's tokens as the list under `key` says, or None where it is absent."""
    names = named_layers(config, key, num_layers, *KINDS_BY_NAME)
    return None if names is None else [KINDS_BY_NAME[name] for name in names]


def every_so_many(num_layers: int, interval: int) -> list[MixerKind]:
    """Return full attention in each layer that ends an interval, and a recurrence elsewhere."""
    return [MixerKind.LINEAR if (layer + 1) % interval else MixerKind.FULL for layer in range(num_layers)]


def mixers_at(indices: tuple[int, ...], num_layers: int) -> list[MixerKind]:
    """Return full attention at `indices` and a recurrence elsewhere."""
    attending = set(indices)
    return [MixerKind.FULL if layer in attending else MixerKind.LINEAR for layer in range(num_layers)]


def dense_layers(config: ConfigReader, rule: DenseLayers, *, first_default: int = 0) -> list[bool]:
    """Return for each layer whether its feed-forward is dense."""
    num_layers = number_of_layers(config)
    if rule is DenseLayers.FIRST:
        first = config.count("first_k_dense_replace", default=first_default)
        return [layer < first for layer in range(num_layers)]
    if rule is DenseLayers.BETWEEN_STEPS:
        step = config.size("decoder_sparse_step", default=1)
        without = set(config.whole_numbers("mlp_only_layers") or ())
        return [layer in without or (layer + 1) % step != 0 for layer in range(num_layers)]
    return [False] * num_layers


def named_dense_layers(config: ConfigReader, *, first_default: int) -> list[bool]:
    """Return for each layer whether `mlp_layer_types` calls it dense; without it the first ones are."""
    dense = dense_layers(config, DenseLayers.FIRST, first_default=first_default)
    named = named_layers(config, "mlp_layer_types", len(dense), "dense", "sparse")
    return dense if named is None else [kind == "dense" for kind in named]
