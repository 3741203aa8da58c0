"""Which reader describes which `model_type`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from planners.architecture.model import ModelSpec
from planners.errors import InvalidModelConfig, UnknownModelType
from planners.huggingface import deepseek, gpt2, mamba
from planners.huggingface.config import ConfigReader
from planners.huggingface.dense import dense_decoder
from planners.huggingface.dense_families import DENSE_FAMILIES

Reader = Callable[[ConfigReader, str, str], ModelSpec]

READERS: Mapping[str, Reader] = {
    "deepseek_v2": partial(deepseek.deepseek, variant=deepseek.V2),
    "deepseek_v3": partial(deepseek.deepseek, variant=deepseek.V3),
    "gpt2": gpt2.gpt2,
    "kimi_k2": partial(deepseek.deepseek, variant=deepseek.V3),
    "mamba": mamba.mamba,
    "mamba2": mamba.mamba2,
    **{model_type: partial(dense_decoder, family=family) for model_type, family in DENSE_FAMILIES.items()},
}


def known_model_types() -> tuple[str, ...]:
    """Return every `model_type` that can be described, sorted."""
    return tuple(sorted(READERS))


def describe_config(config: Mapping[str, Any], *, name: str, pointer: str = "/model/config") -> ModelSpec:
    """Return the description of the model that a `config.json` configures.

    Keys that no reader asked for are named in the description's assumptions.
    Raises `UnknownModelType` for a family without a reader and
    `InvalidModelConfig` for a config that is missing a size or contradicts itself.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise InvalidModelConfig(
            f"'model_type' is missing; known are {', '.join(known_model_types())}.", pointer=f"{pointer}/model_type"
        )
    reader = READERS.get(model_type)
    if reader is None:
        raise UnknownModelType(model_type, READERS, pointer=f"{pointer}/model_type")
    read = ConfigReader(config, pointer=pointer)
    spec = reader(read, name, model_type)
    unread = read.unread_keys()
    if not unread:
        return spec
    note = f"These config keys were not used: {', '.join(unread)}."
    return dataclasses.replace(spec, assumptions=(*spec.assumptions, note))
