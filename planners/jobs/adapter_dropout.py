"""What a dropout before every adapter keeps: its mask, and what it leaves of the input, for each adapter anew.

Source: peft 0.21, tuners/lora/layer.py, `Linear.forward`, and tuners/lora/bnb.py, `Linear4bit.forward`:
`lora_B(lora_A(dropout(x)))`; a probability of 0 is an identity, and adapters share their matrix's input.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.questions import Lora
from plimsoll.planners.stacks.profile import Profile

# torch's mask of a dropout (aten/src/ATen/native/cuda/Dropout.cu: a bool an element).
MASK_BYTES = 1
# Stacks with and without some kernels, in every width.
MOST_KEPT = 128


def with_adapter_dropout(profile: Profile, lora: Lora, method: str, element_bytes: int) -> Profile:
    """Return a stack's profile as it runs adapters with the dropout that is asked for; itself where none is."""
    if method == "full" or lora.dropout is None:
        return profile
    return _with_bytes(ByIdentity(profile), element_bytes + MASK_BYTES if lora.dropout else 0)


@functools.lru_cache(maxsize=MOST_KEPT)
def _with_bytes(same: ByIdentity[Profile], kept_bytes: int) -> Profile:
    """Return the same profile whenever it is asked for: what is worked out of one is kept by its identity."""
    profile = same.value
    return replace(profile, kernels=replace(profile.kernels, adapter_dropout_bytes=kept_bytes))
