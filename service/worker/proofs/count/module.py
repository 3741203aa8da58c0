"""The class of transformers whose weights a plan describes, built without memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from plimsoll.planners.ground.errors import InvalidModelConfig

COUNTED_DTYPE = torch.bfloat16  # what checkpoints are published in


def whole_module(config: Mapping[str, Any]) -> Any:
    """Return the module that the config's `architectures` name, its towers included, on the meta device.

    A config without `architectures` has the class that its towers or its encoder ask for.
    Needs no network: the config's own values are all it reads. Raises
    `InvalidModelConfig` for a config transformers cannot build.
    """
    from transformers import AutoConfig

    values = {key: value for key, value in config.items() if key not in ("model_type", "dtype", "torch_dtype")}
    try:
        settings = AutoConfig.for_model(config["model_type"], **values)
        with torch.device("meta"):
            return _factory(settings).from_config(settings, dtype=COUNTED_DTYPE)
    except (KeyError, ValueError, TypeError, AttributeError, ImportError) as error:
        raise InvalidModelConfig(f"transformers cannot build this config: {error}", pointer="/model/config") from error


def _factory(settings: Any) -> Any:
    """Return transformers' factory of a config's class."""
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        AutoModelForMaskedLM,
        AutoModelForPreTraining,
        AutoModelForSeq2SeqLM,
        AutoModelForSpeechSeq2Seq,
    )

    with_towers = (AutoModelForImageTextToText,) if hasattr(settings, "vision_config") else ()
    two_stacks = (AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq) if settings.is_encoder_decoder else ()
    factories = (*with_towers, *two_stacks, AutoModelForCausalLM)
    for factory in (*factories, AutoModelForMaskedLM, AutoModelForPreTraining):
        if _class_names(factory, settings) & set(settings.architectures or ()):
            return factory
    return next((factory for factory in factories if _class_names(factory, settings)), AutoModelForCausalLM)


def _class_names(factory: Any, settings: Any) -> set[str]:
    """Return the names of the classes that a factory has for a config."""
    classes = factory._model_mapping.get(type(settings), ())
    return {each.__name__ for each in (classes if isinstance(classes, tuple) else (classes,))}
