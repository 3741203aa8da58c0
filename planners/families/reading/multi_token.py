"""Multi-token prediction layers: what a checkpoint holds beside the model."""

from __future__ import annotations

from plimsoll.planners.architecture.multi_token import BESIDE_MODEL
from plimsoll.planners.families.reading.config import ConfigReader


def multi_token_assumptions(config: ConfigReader, *keys: str) -> tuple[str, ...]:
    """Return a note on the layers that predict the tokens after the next one, where the config announces any.

    `keys` are multiplied: MiniMax counts modules and the layers of each. Such
    layers help pre-training and speculative decoding (DeepSeek-V3,
    arXiv:2412.19437, section 2.2); no stack trains or serves with them unless asked.
    """
    layers = 1
    for key in keys:
        layers *= config.count(key, default=0)
    if not layers:
        return ()
    note = f"{BESIDE_MODEL} ({layers}) stand beside the model; their weights and work are not counted."
    return (note,)
