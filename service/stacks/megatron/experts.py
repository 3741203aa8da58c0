"""How a command of Megatron-LM divides a model's experts, and what of them is not read.

Source: megatron/training/arguments.py; core/parallel_state.py (initialize_model_parallel), where each expert is cut
over as many tensor-parallel ranks as the rest of a layer unless `--expert-tensor-parallel-size` says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from plimsoll.planners.layouts.experts import experts_are_cut
from plimsoll.planners.stacks.profile import Profile
from plimsoll.service.stacks.megatron.flags import FLAGS
from plimsoll.service.workloads.commands.flags import option

# Experts in every layer: a frequency of one, or the pattern that repeats a layer with them.
IN_EVERY_LAYER = re.compile(r"1|\(?\[1\]\*\d+\)?|\[1(,1)*\]")
# Flags of models whose layers have more than routed experts, or whose tokens do not all reach theirs.
NOT_READ = (
    "--moe-shared-expert-intermediate-size",
    "--moe-latent-size",
    "--moe-expert-capacity-factor",
    "--moe-pad-expert-input-to-capacity",
)
Values = Mapping[str, Any]


def told_expert_tensor(values: Values) -> int:
    """Return over how many tensor-parallel ranks each expert is cut by a command's arguments."""
    return int(values.get("expert_tensor_parallel", values.get("tensor_parallel", 1)))


def why_experts_are_not_read(values: Values, others: Collection[str]) -> str | None:
    """Return what a command says of its experts that no model here has; None where all is read."""
    if not values.get("experts"):
        return None
    decisive = next((name for name in NOT_READ if name in others), None)
    if decisive is not None:
        return f"{decisive} decides what experts compute, and is not read"
    frequency = re.sub(r"\s", "", str(values.get("expert_layers", 1)))
    if IN_EVERY_LAYER.fullmatch(frequency) is None:
        return f"{option(FLAGS, 'expert_layers')} {frequency[:40]} is not read: experts in every layer are"
    if not values.get("is_gated"):
        return (
            f"{option(FLAGS, 'experts')} without {option(FLAGS, 'is_gated')} is not read: experts of gated layers are"
        )
    return None


def why_their_division_is_not_planned(values: Values, profile: Profile, replicas: int) -> str | None:
    """Return why experts are divided otherwise than they are planned; None where they are as planned.

    `replicas` are the ranks that hold different tokens: data times context parallel.
    """
    if not values.get("experts"):
        return None
    degree, tensor = int(values.get("expert_parallel", 1)), int(values.get("tensor_parallel", 1))
    is_cut = bool(experts_are_cut(profile, np.array(replicas), np.array(degree)))
    planned, told = tensor if is_cut else 1, told_expert_tensor(values)
    if told == planned:
        return None
    flag = option(FLAGS, "expert_tensor_parallel")
    return (
        f"{flag} {told} is not planned, {flag} {planned} is (tensor parallel {tensor}, and expert parallel {degree} "
        f"over {replicas} ranks with different tokens)"
    )
