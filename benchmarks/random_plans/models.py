"""Models drawn at random: listed ones cut to a few layers, some of them with other widths and vocabularies."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import model_types_with, traits
from plimsoll.planners.families.family import Tracing
from plimsoll.service.worker.jobs.config_keys import of_layers

NARROWED_FRACTION = 0.35
OTHER_TIE_FRACTION = 0.12
# Of models whose matrices are to be divided: those whose matrices every stack knows, and mixtures.
PLAIN_FRACTION, MIXTURE_FRACTION = 0.6, 0.25
QUERY_HEADS_PER_KEY = (1, 2, 3, 4, 5, 7)
MOST_KEY_HEADS_PER_RANK = 3
FEED_FORWARD_COLUMNS_PER_RANK = (301, 2500)
HIDDEN_SIZE = (600, 4400)
# Rows of a mixture's products, and of states that heads divide, start on 16 bytes of 16-bit numbers.
ALIGNED = 8
# From where no class has its padding token beyond: phi3 has it at 32,000.
VOCABULARY = (33_003, 170_001)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a layout asks of its model: `tensor_parallel` ranks divide its widths; None is no wish."""

    layers: int
    tensor_parallel: int = 1
    is_divided: bool = False
    is_tied: bool | None = None
    is_mixture: bool | None = None


@functools.cache
def _model_types() -> tuple[str, ...]:
    listed = {model.config["model_type"] for model in catalogue().models}
    return tuple(name for name in model_types_with(lambda family: family.tracing is not None) if name in listed)


def drawn_config(random: Random, wanted: Wanted) -> dict[str, Any]:
    """Return a config of a traced family in the shape that a layout wants, as far as the family allows."""
    model_type = _drawn_type(random, wanted)
    name = random.choice([model.id for model in catalogue().models if model.config["model_type"] == model_type])
    config = of_layers(catalogue().model(name).config, range(wanted.layers))
    config["_name_or_path"] = name
    if random.random() < NARROWED_FRACTION or not _divides(config, wanted.tensor_parallel):
        config |= _other_widths(random, config, wanted.tensor_parallel)
    ties = wanted.is_tied
    if ties is None and random.random() < OTHER_TIE_FRACTION:
        ties = not config.get("tie_word_embeddings", False)
    return config if ties is None else config | {"tie_word_embeddings": ties}


def _drawn_type(random: Random, wanted: Wanted) -> str:
    """Return a family; where matrices are divided or fused, mostly one whose matrices every stack knows."""
    names = [name for name in _model_types() if wanted.is_mixture in (None, traits(name).has_experts)]
    if wanted.is_divided:
        kind = random.random()
        if kind < PLAIN_FRACTION:
            chosen = [name for name in names if _tracing(name).has_llama_matrices]
        elif kind < PLAIN_FRACTION + MIXTURE_FRACTION:
            chosen = [name for name in names if _tracing(name).groups_experts or _tracing(name).has_latent_attention]
        else:
            chosen = names
        names = chosen or names
    return random.choice(names)


def _tracing(model_type: str) -> Tracing:
    return traits(model_type).tracing or Tracing()


def _divides(config: Mapping[str, Any], ranks: int) -> bool:
    heads = config.get("num_attention_heads", ranks)
    widths = (heads, config.get("num_key_value_heads") or heads, config.get("intermediate_size", ranks))
    return all(width % ranks == 0 for width in widths)


def _other_widths(random: Random, config: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """Return other sizes of a config that names them as Llama's does: multiples of the ranks, seldom powers of two."""
    if not {"num_attention_heads", "hidden_size", "intermediate_size"} <= config.keys():
        return {"vocab_size": random.randint(*VOCABULARY)}
    keys = ranks * random.randint(1, MOST_KEY_HEADS_PER_RANK)
    has_groups = "num_key_value_heads" in config and "kv_lora_rank" not in config
    heads = keys * (random.choice(QUERY_HEADS_PER_KEY) if has_groups else 1)
    length = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    states_length = "head_dim" in config or "kv_lora_rank" in config
    step = math.lcm(heads, ALIGNED)
    widths = {
        "vocab_size": random.randint(*VOCABULARY),
        "num_attention_heads": heads,
        "hidden_size": step * max(random.randint(*HIDDEN_SIZE) // step, 1) if states_length else heads * length,
    }
    if "num_key_value_heads" in config:
        widths["num_key_value_heads"] = keys
    columns = ranks * ALIGNED if traits(config["model_type"]).has_experts else ranks
    for name in ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size"):
        if config.get(name):
            widths[name] = columns * max(ranks * random.randint(*FEED_FORWARD_COLUMNS_PER_RANK) // columns, 1)
    return widths
