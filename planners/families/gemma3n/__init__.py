"""Gemma 3n: its text model, its eyes and its ears."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.planners.families.family import Family
from plimsoll.planners.families.gemma3n.text import gemma3n_text
from plimsoll.planners.families.gemma3n.towers import gemma3n_projector, gemma3n_tower
from plimsoll.planners.families.reading.multimodal import Wrapper

FAMILIES: Mapping[str, Family] = {
    "gemma3n_text": Family(
        reader=gemma3n_text,
        states_stretched_positions=True,
        class_sizes={
            "hidden_size": 2048,
            "num_attention_heads": 8,
            "max_position_embeddings": 32_768,
        },
    ),
    "gemma3n": Family(
        reader=Wrapper(
            text_type="gemma3n_text",
            fixed_tower=gemma3n_tower,
            tied_by_default=True,
            prefix="",
            text_module="model.language_model.",
            projector=gemma3n_projector,
        ),
        states_stretched_positions=True,
    ),
}
