"""What accelerate wraps of transformers' models, where their own list of it names layers that are not there."""

from __future__ import annotations

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from plimsoll.planners.catalogue.catalogue import catalogue
from plimsoll.planners.families import traits

ONE_OF_EACH = {entry.config["model_type"]: entry.config for entry in catalogue().models}


def built(model_type):
    """transformers' model without weights, None where it has none of that type to load as a language model."""
    config = dict(ONE_OF_EACH[model_type])
    try:
        known = AutoConfig.for_model(config.pop("model_type"), **config)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(known)
    except (ValueError, ImportError):
        return None


def test_whatever_is_to_be_wrapped_is_there_and_told_where_transformers_list_will_not_do():
    models = {model_type: model for model_type in ONE_OF_EACH if (model := built(model_type)) is not None}
    assert {"llama", "qwen3_5", "gemma3", "mllama", "gpt2"} <= models.keys()
    for model_type, model in models.items():
        there = {type(module).__name__ for module in model.modules()}
        own, told = set(model._no_split_modules or ()), set(traits(model_type).wrapped_layers)
        assert (told or own) <= there, model_type
        assert bool(told) is (not own <= there), model_type
