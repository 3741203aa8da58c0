"""Multimodal wrappers: the text model of their `text_config`, and beside it what turns images and sound into tokens.

The text model is described and planned as on its own. The towers and the
projectors are counted to the last weight; they stand whole with the embedding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.weight import Weight
from plimsoll.planners.families.config import ConfigReader
from plimsoll.planners.families.gemma3n_towers import gemma3n_projector, gemma3n_tower
from plimsoll.planners.families.gemma4_vision import gemma4_projector, gemma4_tower
from plimsoll.planners.families.kimi_vision import kimi_k25_projector, kimi_k25_tower, kimi_vl_projector
from plimsoll.planners.families.llama4_vision import llama4_projector, llama4_tower
from plimsoll.planners.families.minimax_m3_vision import minimax_m3_projector, minimax_m3_tower
from plimsoll.planners.families.mllama import mllama_projector, mllama_tower
from plimsoll.planners.families.qwen3_vision import qwen3_5_tower, qwen3_vl_tower
from plimsoll.planners.families.step3_vision import step3_projector, step3_tower
from plimsoll.planners.families.text_defaults import TEXT_DEFAULTS
from plimsoll.planners.families.vision import TOWERS, Tower, linear, norm, qwen2_5_tower, qwen2_tower, vision_weights

Reader = Callable[[ConfigReader, str, str], ModelSpec]
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

# Towers of configs without `vision_config`: transformers 5.23, configuration_llava.py, configuration_mistral3.py.
CLIP_LARGE = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "patch_size": 14, "image_size": 336,
}  # fmt: skip
PIXTRAL_OF_MISTRAL = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "patch_size": 14, "image_size": 1540,
}  # fmt: skip


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
    projector: Projector
    may_be_flat: bool = False
    may_be_blind: bool = False
    absent_tower: Mapping[str, Any] = field(default_factory=dict)

    def renamed(self, name: str) -> str:
        """Return a text weight's name in the wrapper's checkpoint."""
        return self.prefix + (name.replace("model.", self.text_module, 1) if name.startswith("model.") else name)


def multimodal(
    config: ConfigReader, name: str, model_type: str, wrapper: Wrapper, readers: Mapping[str, Reader]
) -> ModelSpec:
    """Return the text model of a wrapper, with the vision weights beside its embedding."""
    text, text_type = _text(config, wrapper, readers)
    is_absent = config.is_absent("vision_config")
    vision = config.section("vision_config", defaults=wrapper.absent_tower if is_absent else None)
    tower_type = vision.text("model_type", default=wrapper.tower)
    tower = wrapper.fixed_tower or TOWERS.get(tower_type)
    if tower is None:
        raise vision.error("model_type", f"The vision tower '{tower_type}' is not described; {', '.join(TOWERS)} are.")
    spec = readers[text_type](text, name, text_type)
    config.ignore(*TOKEN_KEYS)
    config.must_be("language_model_only", False)
    beside = wrapper.projector(config, vision, spec.hidden_size)
    is_blind = wrapper.may_be_blind and is_absent
    seen = () if is_blind else (*tower(vision), *beside)
    embedding = _renamed(spec.embedding, wrapper)
    return dataclasses.replace(
        spec,
        model_type=model_type,
        embedding=dataclasses.replace(embedding, weights=(*embedding.weights, *seen)),
        layers=tuple(_renamed(block, wrapper) for block in spec.layers),
        head=_renamed(spec.head, wrapper),
        assumptions=spec.assumptions if is_blind else (*spec.assumptions, VISION_NOTE),
    )


def _text(config: ConfigReader, wrapper: Wrapper, readers: Mapping[str, Reader]) -> tuple[ConfigReader, str]:
    """Return the text model's config, completed by its class's defaults, and its type.

    Whether the head is tied is said by the wrapper first, then by the text model.
    """
    if wrapper.may_be_flat and config.is_absent("text_config"):
        return config, wrapper.text_type
    text_type = config.section("text_config").text("model_type", default=wrapper.text_type)
    if text_type not in readers:
        raise config.error("text_config/model_type", f"The text model '{text_type}' is not described.")
    defaults: dict[str, Any] = dict(TEXT_DEFAULTS.get(text_type, {}))
    if wrapper.tied_by_default is not None:
        defaults["tie_word_embeddings"] = wrapper.tied_by_default
    forced = {}
    if not config.is_absent("tie_word_embeddings"):
        forced["tie_word_embeddings"] = config.flag("tie_word_embeddings", default=False)
    return config.section("text_config", defaults=defaults, forced=forced), text_type


def _renamed(block: Block, wrapper: Wrapper) -> Block:
    weights = tuple(dataclasses.replace(weight, name=wrapper.renamed(weight.name)) for weight in block.weights)
    return dataclasses.replace(block, weights=weights)


def _two_layer_projector(config: ConfigReader, vision: ConfigReader, text_width: int) -> tuple[Weight, ...]:
    """Return LLaVA's projector, which reads the features of one or several layers of the tower."""
    bias = config.flag("multimodal_projector_bias", default=True)
    width = vision.size("hidden_size", default=vision_default(vision)) * _feature_layers(config)
    return vision_weights(
        (
            *linear("multi_modal_projector.linear_1", text_width, width, bias=bias),
            *linear("multi_modal_projector.linear_2", text_width, text_width, bias=bias),
        )
    )


def _newline_projector(config: ConfigReader, vision: ConfigReader, text_width: int) -> tuple[Weight, ...]:
    """Return LLaVA-NeXT's projector and the token it puts after each row of an image."""
    newline = vision_weights([("image_newline", (text_width,))])
    return (*_two_layer_projector(config, vision, text_width), *newline)


def _merging_projector(config: ConfigReader, vision: ConfigReader, text_width: int) -> tuple[Weight, ...]:
    """Return Mistral 3's projector, which merges a square of patches before it projects."""
    bias = config.flag("multimodal_projector_bias", default=False)
    width = vision.size("hidden_size", default=vision_default(vision))
    merged = width * config.size("spatial_merge_size", default=2) ** 2
    return vision_weights(
        (
            *norm("multi_modal_projector.norm", width, bias=False),
            *linear("multi_modal_projector.patch_merger.merging_layer", width, merged, bias=False),
            *linear("multi_modal_projector.linear_1", text_width, width * _feature_layers(config), bias=bias),
            *linear("multi_modal_projector.linear_2", text_width, text_width, bias=bias),
        )
    )


def _gemma3_projector(config: ConfigReader, vision: ConfigReader, text_width: int) -> tuple[Weight, ...]:  # noqa: ARG001
    """Return Gemma 3's projector: a norm and one matrix, which stands as [in, out]."""
    width = vision.size("hidden_size", default=vision_default(vision))
    return vision_weights(
        (
            ("multi_modal_projector.mm_input_projection_weight", (width, text_width)),
            *norm("multi_modal_projector.mm_soft_emb_norm", width, bias=False),
        )
    )


def _no_projector(config: ConfigReader, vision: ConfigReader, text_width: int) -> tuple[Weight, ...]:  # noqa: ARG001
    """Return nothing: the tower itself ends at the text's width."""
    return ()


def vision_default(vision: ConfigReader) -> int:
    """Return the width of a tower whose config leaves it out."""
    return 1024 if vision.text("model_type", default="") == "pixtral" else 768


def _feature_layers(config: ConfigReader) -> int:
    """Return of how many of the tower's layers the projector reads the features."""
    if config.is_list("vision_feature_layer"):
        return len(config.items("vision_feature_layer") or [])
    config.ignore("vision_feature_layer")
    return 1


def _qwen3(text_type: str, tower: Tower) -> Wrapper:
    return Wrapper(
        text_type=text_type,
        fixed_tower=tower,
        tied_by_default=False,
        prefix="",
        text_module="model.language_model.",
        projector=_no_projector,
    )


WRAPPERS: Mapping[str, Wrapper] = {
    "gemma3": Wrapper(
        text_type="gemma3_text", tower="siglip_vision_model", tied_by_default=True, projector=_gemma3_projector
    ),
    "gemma3n": Wrapper(
        text_type="gemma3n_text",
        fixed_tower=gemma3n_tower,
        tied_by_default=True,
        prefix="",
        text_module="model.language_model.",
        projector=gemma3n_projector,
    ),
    "gemma4": Wrapper(
        text_type="gemma4_text",
        fixed_tower=gemma4_tower,
        tied_by_default=True,
        prefix="",
        text_module="model.language_model.",
        projector=gemma4_projector,
        may_be_blind=True,
    ),
    "llama4": Wrapper(
        text_type="llama4_text", fixed_tower=llama4_tower, tied_by_default=False, projector=llama4_projector
    ),
    "llava": Wrapper(text_type="llama", projector=_two_layer_projector, absent_tower=CLIP_LARGE),
    "llava_next": Wrapper(text_type="llama", projector=_newline_projector, absent_tower=CLIP_LARGE),
    "minimax_m3_vl": Wrapper(
        text_type="minimax_m3_vl_text",
        fixed_tower=minimax_m3_tower,
        tied_by_default=False,
        projector=minimax_m3_projector,
    ),
    "mllama": Wrapper(
        text_type="mllama_text_model", fixed_tower=mllama_tower, tied_by_default=False, projector=mllama_projector
    ),
    "mistral3": Wrapper(
        text_type="mistral", tower="pixtral", projector=_merging_projector, absent_tower=PIXTRAL_OF_MISTRAL
    ),
    "qwen2_vl": Wrapper(
        text_type="qwen2_vl_text", fixed_tower=qwen2_tower, prefix="", projector=_no_projector, may_be_flat=True
    ),
    "qwen2_5_vl": Wrapper(
        text_type="qwen2_5_vl_text", fixed_tower=qwen2_5_tower, prefix="", projector=_no_projector, may_be_flat=True
    ),
    "kimi_k25": Wrapper(
        text_type="deepseek_v3", fixed_tower=kimi_k25_tower, tied_by_default=False, projector=kimi_k25_projector
    ),
    "kimi_vl": Wrapper(
        text_type="deepseek_v3", fixed_tower=kimi_k25_tower, tied_by_default=False, projector=kimi_vl_projector
    ),
    "step3p7": Wrapper(
        text_type="step3p5",
        fixed_tower=step3_tower,
        tied_by_default=False,
        prefix="",
        projector=step3_projector,
        may_be_flat=True,
    ),
    "qwen3_5": _qwen3("qwen3_5_text", qwen3_5_tower),
    "qwen3_5_moe": _qwen3("qwen3_5_moe_text", qwen3_5_tower),
    "qwen3_vl": _qwen3("qwen3_vl_text", qwen3_vl_tower),
    "qwen3_vl_moe": _qwen3("qwen3_vl_moe_text", qwen3_vl_tower),
}
