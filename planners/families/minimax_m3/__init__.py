"""MiniMax M3: its text model, and the tower that it sees with."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.planners.families.family import Family
from plimsoll.planners.families.minimax_m3.text import minimax_m3_text
from plimsoll.planners.families.minimax_m3.vision import minimax_m3_projector, minimax_m3_tower
from plimsoll.planners.families.reading.multimodal import Wrapper

FAMILIES: Mapping[str, Family] = {
    "minimax_m3": Family(reader=minimax_m3_text),
    "minimax_m3_vl_text": Family(reader=minimax_m3_text),
    "minimax_m3_vl": Family(
        reader=Wrapper(
            text_type="minimax_m3_vl_text",
            fixed_tower=minimax_m3_tower,
            tied_by_default=False,
            projector=minimax_m3_projector,
        ),
        needs_remote_code=True,
    ),
}
