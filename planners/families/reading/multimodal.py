"""Multimodal wrappers: the text model of their `text_config`, and beside it what turns images and sound into tokens.

The text model is described and planned as on its own. The towers and the
projectors are counted to the last weight; they stand whole with the embedding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.weight import Weight
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.vision import TOWERS, Tower

if TYPE_CHECKING:
    from plimsoll.planners.families.family import Family

Projector = Callable[[ConfigReader, ConfigReader, int], tuple[Weight, ...]]

VISION_NOTE = (
    "The vision tower and projector (and audio tower, if any) are counted and held whole on every rank of the "
    "first stage; their own computation and their activations are not planned."
)
TOKEN_KEYS = (
    "audio_token_id", "boi_token_index", "eoi_token_index", "ignore_index", "image_grid_pinpoints", "image_seq_length",
    "image_token_id", "image_token_index", "mm_tokens_per_image", "projector_hidden_act", "spatial_merge_size",
    "use_image_newline_parameter", "video_token_id", "vision_end_token_id", "vision_feature_select_strategy",
    "video_token_index", "vision_start_token_id", "vision_token_id", "image_token", "vocab_size",
)  # fmt: skip


def no_projector(config: ConfigReader, vision: ConfigReader, text_width: int) -> tuple[Weight, ...]:  # noqa: ARG001
    """Return nothing: the tower itself ends at the text's width."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapper:
    """What one kind of wrapper puts around which text model.

    `text_type` and `tower` are used where the nested configs name none;
    `fixed_tower` allows no other. `prefix` stands before the text model's names,
    and `text_module` in the place of their own `model.`.
    A flat config (Qwen2-VL's published one) has the text model's keys beside
    `vision_config`. Without one a model that `may_be_blind` has no tower, and another its class's own `absent_tower`,
    which is not the tower's class's default.
    """

    text_type: str
    tower: str = "clip_vision_model"
    fixed_tower: Tower | None = None
    tied_by_default: bool | None = None  # None: as the text model says
    prefix: str = "language_model."
    text_module: str = "model."
    projector: Projector = no_projector
    may_be_flat: bool = False
    may_be_blind: bool = False
    absent_tower: Mapping[str, Any] = field(default_factory=dict)

    def renamed(self, name: str) -> str:
        """Return a text weight's name in the wrapper's checkpoint."""
        return self.prefix + (name.replace("model.", self.text_module, 1) if name.startswith("model.") else name)


def multimodal(config: ConfigReader, wrapper: Wrapper, families: Mapping[str, Family]) -> ModelSpec:
    """Return the text model of a wrapper, one of the families, with the vision weights beside its embedding."""
    text, reader = _text(config, wrapper, families)
    is_absent = config.is_absent("vision_config")
    vision = config.section("vision_config", defaults=wrapper.absent_tower if is_absent else None)
    tower_type = vision.text("model_type", default=wrapper.tower)
    tower = wrapper.fixed_tower or TOWERS.get(tower_type)
    if tower is None:
        raise vision.error("model_type", f"The vision tower '{tower_type}' is not described; {', '.join(TOWERS)} are.")
    spec = reader(text)
    config.ignore(*TOKEN_KEYS)
    config.must_be("language_model_only", False)
    beside = wrapper.projector(config, vision, spec.hidden_size)
    is_blind = wrapper.may_be_blind and is_absent
    seen = () if is_blind else (*tower(vision), *beside)
    embedding = _renamed(spec.embedding, wrapper)
    return dataclasses.replace(
        spec,
        model_type=config.model_type,
        embedding=dataclasses.replace(embedding, weights=(*embedding.weights, *seen)),
        layers=tuple(_renamed(block, wrapper) for block in spec.layers),
        head=_renamed(spec.head, wrapper),
        assumptions=spec.assumptions if is_blind else (*spec.assumptions, VISION_NOTE),
    )


def _text(
    config: ConfigReader, wrapper: Wrapper, families: Mapping[str, Family]
) -> tuple[ConfigReader, Callable[[ConfigReader], ModelSpec]]:
    """Return the text model's config, completed by its class's defaults, and what reads it.

    Whether the head is tied is said by the wrapper first, then by the text model.
    """
    is_flat = wrapper.may_be_flat and config.is_absent("text_config")
    text_type = wrapper.text_type
    if not is_flat:
        text_type = config.section("text_config").text("model_type", default=text_type)
    family = families.get(text_type)
    if family is None or isinstance(family.reader, Wrapper):
        raise config.error("text_config/model_type", f"The text model '{text_type}' is not described.")
    if is_flat:
        return config, family.reader
    defaults: dict[str, Any] = dict(family.class_sizes)
    if wrapper.tied_by_default is not None:
        defaults["tie_word_embeddings"] = wrapper.tied_by_default
    forced = {}
    if not config.is_absent("tie_word_embeddings"):
        forced["tie_word_embeddings"] = config.flag("tie_word_embeddings", default=False)
    return config.section("text_config", defaults=defaults, forced=forced), family.reader


def _renamed(block: Block, wrapper: Wrapper) -> Block:
    weights = tuple(dataclasses.replace(weight, name=wrapper.renamed(weight.name)) for weight in block.weights)
    return dataclasses.replace(block, weights=weights)
