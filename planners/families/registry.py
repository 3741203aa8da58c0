"""Which family describes which `model_type`: the modules of this package say so, each of its own."""

from __future__ import annotations

import dataclasses
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from plimsoll.planners import families as package
from plimsoll.planners.architecture.model import ModelSpec
from plimsoll.planners.families.family import Family, Traits
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.multimodal import Wrapper, multimodal
from plimsoll.planners.families.reading.own_code import ACTIVATION_KEYS, LOGIT_CAP_KEY, with_own_code
from plimsoll.planners.families.reading.rope_scaling import scales_positions, stretched_positions
from plimsoll.planners.families.reading.rotary import (
    FRACTION_NAMES,
    interpolated_tables,
    refuse_unpaired_features,
    rotary_fraction,
)
from plimsoll.planners.families.reading.stored_formats import KEY as QUANTIZATION
from plimsoll.planners.families.reading.stored_formats import READ_KEYS as FORMAT_KEYS
from plimsoll.planners.families.reading.stored_formats import is_quantized, stored_formats, without_repeats
from plimsoll.planners.ground.errors import InvalidModelConfig, UnknownModelType

# How transformers ends the names of classes whose head tells labels, spans or rewards.
OTHER_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "RewardModel")
UNREAD_FORMAT_NOTE = (
    "'quantization_config' says that the checkpoint is quantized in a way that is not read; a serving plan that names "
    "no format for its weights counts them in bf16."
)

# Weights, operations and tensors: a hundred times an ordinary model's, and seven times the catalogue's largest tower's.
MOST_DESCRIBED_PARTS = 8_192
MOST_NAMED_KEYS = 12
MOST_NAME_CHARACTERS = 60


@cache
def families() -> Mapping[str, Family]:
    """Return every family under its `model_type`, sorted; loads all of their modules."""
    found: dict[str, Family] = {}
    for module in pkgutil.iter_modules(package.__path__, prefix=f"{package.__name__}."):
        found.update(getattr(import_module(module.name), "FAMILIES", {}))
    return dict(sorted(found.items()))


def known_model_types() -> tuple[str, ...]:
    """Return every `model_type` that can be described, sorted."""
    return tuple(families())


def traits(model_type: str | None) -> Traits:
    """Return what is true of a family that no config says; the defaults for a type that nobody knows."""
    return families().get(model_type or "", Traits())


def model_types_with(condition: Callable[[Traits], bool]) -> tuple[str, ...]:
    """Return the types whose traits meet a condition, sorted."""
    return tuple(model_type for model_type, family in families().items() if condition(family))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConfig:
    """A `config.json` that was read: what it describes, and what of it counted."""

    spec: ModelSpec
    used: Mapping[str, Any]
    """The config without what no reader asked for; it is read as the whole is."""
    unread: str | None
    """What is said of the rest; None where there is none."""


def describe_config(config: Mapping[str, Any], *, name: str, pointer: str = "/model/config") -> ModelSpec:
    """Return the description of the model that a `config.json` configures; raises what `read_model` does."""
    return read_model(config, name=name, pointer=pointer).spec


def read_model(config: Mapping[str, Any], *, name: str, pointer: str = "/model/config") -> ReadConfig:
    """Return the description of the model that a `config.json` configures, and what of it was read.

    Some of the keys that no reader asked for are named in the description's assumptions.
    Raises `UnknownModelType` for a family without a reader and
    `InvalidModelConfig` for a config that is missing a size or contradicts itself.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        wrong = "is missing" if model_type is None else "must be text"
        raise InvalidModelConfig(
            f"'model_type' {wrong}; known are {', '.join(known_model_types())}.", pointer=f"{pointer}/model_type"
        )
    family = families().get(model_type)
    if family is None:
        raise UnknownModelType(model_type, families(), pointer=f"{pointer}/model_type")
    read = ConfigReader(config, name=name, pointer=pointer)
    spec = with_own_code(_described(read, family), config, family.own_code)
    _refuse_endless(spec, pointer)
    fraction = rotary_fraction(config, family.rotary_fraction)
    refuse_unpaired_features(spec, fraction, pointer)
    unread = _unread_note(read.unread_keys())
    notes = () if unread is None else (unread,)
    if is_quantized(config) and stored_formats(config, pointer=pointer) is None:
        notes = (*notes, UNREAD_FORMAT_NOTE)
    other = _other_head(config)
    if other is not None:
        notes = (*notes, f"'architectures' names {other}; the model is described with its head over the vocabulary.")
    positions = spec.max_position_embeddings
    if not family.states_stretched_positions:
        positions = stretched_positions(config, positions)
    described = dataclasses.replace(
        spec,
        max_position_embeddings=positions,
        rotary_fraction=fraction,
        scales_positions=scales_positions(config),
        interpolated_tables=interpolated_tables(positions) if family.interpolates_positions else 0,
        assumptions=(*spec.assumptions, *notes),
    )
    return ReadConfig(spec=described, used=_used(read, config), unread=unread)


def _described(config: ConfigReader, family: Family) -> ModelSpec:
    if isinstance(family.reader, Wrapper):
        return multimodal(config, family.reader, families())
    return family.reader(config)


def _other_head(config: Mapping[str, Any]) -> str | None:
    """Return the one class that a config names, where that ends in something else than words."""
    named = config.get("architectures")
    only = named[0] if isinstance(named, list | tuple) and len(named) == 1 else None
    return only if isinstance(only, str) and only.endswith(OTHER_HEADS) else None


def _refuse_endless(spec: ModelSpec, pointer: str) -> None:
    parts = described_parts(spec)
    if parts > MOST_DESCRIBED_PARTS:
        raise InvalidModelConfig(
            f"The model has {parts:,} weights and operations that differ from layer to layer; at most "
            f"{MOST_DESCRIBED_PARTS:,} can be described.",
            pointer=pointer,
        )


def described_parts(spec: ModelSpec) -> int:
    """Return how many weights, operations and tensors a description consists of, like layers counted once."""
    return sum(len(block.weights) + len(block.operations) + len(block.tensors) for block in spec.blocks)


def _used(read: ConfigReader, config: Mapping[str, Any]) -> dict[str, Any]:
    used = read.used(config, beside=_read_beside_the_family())
    if isinstance(used.get("text_config"), Mapping):
        used["text_config"] = _with_one_of_each_module(used["text_config"])
    return _with_one_of_each_module(used)


@cache
def _read_beside_the_family() -> frozenset[str]:
    """Return the keys that are read of a config wherever they stand, whichever family's it is."""
    dropouts = {family.own_code.dropout_key for family in families().values() if family.own_code.dropout_key}
    return frozenset({*ACTIVATION_KEYS, LOGIT_CAP_KEY, *dropouts, *FRACTION_NAMES, *FORMAT_KEYS})


def _with_one_of_each_module(part: Mapping[str, Any]) -> dict[str, Any]:
    stored = part.get(QUANTIZATION)
    return {**part, QUANTIZATION: without_repeats(stored)} if isinstance(stored, Mapping) else dict(part)


def _unread_note(keys: tuple[str, ...]) -> str | None:
    if not keys:
        return None
    named = [key if len(key) <= MOST_NAME_CHARACTERS else f"{key[:MOST_NAME_CHARACTERS]}…" for key in keys]
    more = len(keys) - MOST_NAMED_KEYS
    rest = f", and {more:,} more" if more > 0 else ""
    return f"These config keys were not used: {', '.join(named[:MOST_NAMED_KEYS])}{rest}."
