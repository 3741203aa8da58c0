"""The config of a typical Llama-like model where only a number of parameters is given."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from plimsoll.planners import families
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.figures import count_in_words

FEWEST_PARAMETERS = 1e6
MOST_PARAMETERS = 1e13

# Parameters and layers of published models, smallest first: Pythia-14m
# (Biderman et al. 2023, arXiv:2304.01373), Llama 3.2 1B and 3B, Llama 3.1 8B,
# 70B and 405B (Grattafiori et al. 2024, arXiv:2407.21783, table 3), Llama 2 13B
# (Touvron et al. 2023, arXiv:2307.09288) and Yi-34B (Young et al. 2024, arXiv:2403.04652).
LAYERS_BY_PARAMETERS = (
    (14.07e6, 6),
    (1.236e9, 16),
    (3.213e9, 28),
    (8.030e9, 32),
    (13.02e9, 40),
    (34.39e9, 60),
    (70.55e9, 80),
    (405.9e9, 126),
)
# Llama 3's feed-forward is 3.5 times as wide as the model (arXiv:2407.21783, table 3).
FEED_FORWARD_RATIO = 3.5
# Llama 3 has 8 key-value heads at every size. The most of these that divide the heads are taken; while the width is
# looked for they count as a share of the heads, which in the 8B is a quarter.
KEY_VALUE_HEADS = (8, 4, 2, 1)
KEY_VALUE_SHARE = 0.25
# Llama 3's vocabulary; SmolLM2's for models under a billion parameters.
VOCABULARY = 128_256
SMALL_VOCABULARY = 49_152
SMALL_VOCABULARY_BELOW = 1e9
# Parameters below which the head is the embedding: so in Llama 3.2 3B and Qwen3 4B, but not in Llama 3.1 8B, Qwen3 8B.
TIED_BELOW = 5e9
# Llama 3's positions before the extension to long contexts.
POSITIONS = 8192
# From this many layers on, their number is a multiple of the step, so that pipelines divide.
LAYER_STEP = 4
LAYER_STEP_FROM = 16
# By the fewest heads, of what their number is a multiple: in eights, in fours under 32, and in ones in tiny models, so
# that tensor parallelism divides.
HEAD_STEPS = ((32, 8), (4, 4), (0, 1))
# Head size by the least width that takes it, widest first (Llama 3.1, Llama 3.2 1B, and tiny models).
HEAD_DIMS = ((2048, 128), (512, 64), (0, 16))
# The feed-forward width is a multiple of 64, or of 8 in narrow models.
WIDE_FROM = 1024
WIDE_STEP = 64
NARROW_STEP = 8


def typical_config(parameters: float) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the config of a typical Llama-like model of that size, and what was assumed.

    Depth follows published models, width the size, and the feed-forward takes
    up the remainder, so that the described count comes within 2 % of
    `parameters`. Raises `InvalidQuestion` outside `FEWEST_PARAMETERS` to `MOST_PARAMETERS`.
    """
    if not FEWEST_PARAMETERS <= parameters <= MOST_PARAMETERS:
        raise InvalidQuestion(
            f"Typical dimensions are known for {count_in_words(FEWEST_PARAMETERS)} to "
            f"{count_in_words(MOST_PARAMETERS)} parameters, not for {count_in_words(parameters)}.",
            pointer="/model/parameters",
        )
    layers = _typical_layers(parameters)
    tied = parameters < TIED_BELOW
    vocabulary_size, hidden_size, head_dim = _typical_width(parameters, layers, tied=tied)
    heads = hidden_size // head_dim
    config: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": hidden_size,
        "intermediate_size": 1,  # and below what the rest leaves
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": next(number for number in KEY_VALUE_HEADS if heads % number == 0),
        "head_dim": head_dim,
        "vocab_size": vocabulary_size,
        "max_position_embeddings": POSITIONS,
        "tie_word_embeddings": tied,
    }
    config["intermediate_size"] = _feed_forward_width(parameters, config)
    return config, (_assumption(parameters, config),)


def _typical_layers(parameters: float) -> int:
    """Return the depth: between published models on logarithmic axes, and beyond them by the nearest slope."""
    nearest = list(pairwise(LAYERS_BY_PARAMETERS))
    (few, shallow), (many, deep) = next((pair for pair in nearest if parameters <= pair[1][0]), nearest[-1])
    slope = math.log(deep / shallow) / math.log(many / few)
    layers: float = shallow * (parameters / few) ** slope
    if layers >= LAYER_STEP_FROM:
        return LAYER_STEP * round(layers / LAYER_STEP)
    return max(1, round(layers))


def _typical_width(parameters: float, layers: int, *, tied: bool) -> tuple[int, int, int]:
    """Return vocabulary, hidden size and head size.

    The width h of L layers over a vocabulary of V solves
    c·V·h + L·h²·(2 + 2·share + 3·ratio) = parameters,
    with c = 1 where the head is tied and 2 otherwise: queries and the output projection are h² each, keys and values
    `KEY_VALUE_SHARE` of that, the feed-forward's three matrices `FEED_FORWARD_RATIO`. The vocabulary is halved until
    the embeddings are less than half of the model.
    """
    vocabulary_size = SMALL_VOCABULARY if parameters < SMALL_VOCABULARY_BELOW else VOCABULARY
    square = layers * (2 + 2 * KEY_VALUE_SHARE + 3 * FEED_FORWARD_RATIO)
    while True:
        linear = vocabulary_size * (1 if tied else 2)
        width = (math.sqrt(linear**2 + 4 * square * parameters) - linear) / (2 * square)
        if linear * width < parameters / 2:
            break
        vocabulary_size //= 2
    head_dim = next(size for least, size in HEAD_DIMS if width >= least)
    step = next(size for least, size in HEAD_STEPS if width / head_dim >= least)
    heads = max(1, round(width / head_dim / step)) * step
    return vocabulary_size, heads * head_dim, head_dim


def _feed_forward_width(parameters: float, config: dict[str, Any]) -> int:
    """Return the feed-forward width that brings the described count nearest to `parameters`, of a config with width 1.

    A feature more costs a row or column of three matrices in each layer.
    """
    hidden_size: int = config["hidden_size"]
    of_width_1 = families.describe_config(config, name="typical").parameters
    wanted: float = 1 + (parameters - of_width_1) / (3 * hidden_size * config["num_hidden_layers"])
    step = WIDE_STEP if hidden_size >= WIDE_FROM else NARROW_STEP
    return max(1, round(wanted / step)) * step


def _assumption(parameters: float, config: dict[str, Any]) -> str:
    count = families.describe_config(config, name="typical").parameters
    return (
        f"Only a size was given: the dimensions are those of a typical Llama-like model "
        f"({config['num_hidden_layers']} layers, hidden size {config['hidden_size']}, "
        f"feed-forward {config['intermediate_size']}, {config['num_attention_heads']} heads, "
        f"{config['num_key_value_heads']} key-value heads, vocabulary {config['vocab_size']}), "
        f"which has {count:,} parameters, {count / parameters - 1:+.2%} of what was asked."
    )
