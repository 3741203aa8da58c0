"""Which optimizers are traced by rule, their update being one kernel in place; free of torch, for requests' refusal."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRule:
    """How many states an optimizer keeps of each element, and in what form."""

    states: int
    is_8bit: bool = False
    is_paged: bool = False


KERNEL_RULES = {
    "lion": KernelRule(states=1),
    "adamw-8bit": KernelRule(states=2, is_8bit=True),
    "paged-adamw": KernelRule(states=2, is_paged=True),
    "paged-adamw-8bit": KernelRule(states=2, is_8bit=True, is_paged=True),
}
