"""Gemma 4: its text model, and the tower that it sees with."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.planners.families.family import Family
from plimsoll.planners.families.gemma4.text import gemma4_text
from plimsoll.planners.families.gemma4.vision import gemma4_projector, gemma4_tower
from plimsoll.planners.families.reading.multimodal import Wrapper

FAMILIES: Mapping[str, Family] = {
    "gemma4_text": Family(
        reader=gemma4_text,
        class_sizes={
            "vocab_size": 262_144,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 30,
            "num_attention_heads": 8,
            "max_position_embeddings": 131_072,
        },
    ),
    "gemma4": Family(
        reader=Wrapper(
            text_type="gemma4_text",
            fixed_tower=gemma4_tower,
            tied_by_default=True,
            prefix="",
            text_module="model.language_model.",
            may_be_blind=True,
            projector=gemma4_projector,
        ),
        wrapped_layers=("Gemma4TextDecoderLayer",),
    ),
}
