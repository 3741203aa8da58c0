"""Llama 4: its text model, and the tower that it sees with."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.planners.families.family import Family, Untraced
from plimsoll.planners.families.llama4.text import llama4_text
from plimsoll.planners.families.llama4.vision import llama4_projector, llama4_tower
from plimsoll.planners.families.reading.multimodal import Wrapper

FAMILIES: Mapping[str, Family] = {
    "llama4_text": Family(
        reader=llama4_text,
        untraced=Untraced.EVERY_EXPERT,
    ),
    "llama4": Family(
        reader=Wrapper(
            text_type="llama4_text",
            fixed_tower=llama4_tower,
            tied_by_default=False,
            projector=llama4_projector,
        ),
        untraced=Untraced.EVERY_EXPERT,
    ),
}
