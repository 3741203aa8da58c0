"""Step 3.5 and 3.7: the text model, and the tower that the later one sees with."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.planners.families.family import Family
from plimsoll.planners.families.reading.multimodal import Wrapper
from plimsoll.planners.families.step3.text import step3_text
from plimsoll.planners.families.step3.vision import step3_projector, step3_tower

FAMILIES: Mapping[str, Family] = {
    "step3p5": Family(reader=step3_text),
    "step3p7": Family(
        reader=Wrapper(
            text_type="step3p5",
            fixed_tower=step3_tower,
            tied_by_default=False,
            prefix="",
            may_be_flat=True,
            projector=step3_projector,
        ),
        needs_remote_code=True,
    ),
}
