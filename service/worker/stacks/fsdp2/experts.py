"""Expert parallelism: whole experts on other ranks, and the tokens sent to them and back.

transformers' experts stay; what comes before and after their products is
torchtitan's way, with as many tokens for one rank as for another.

Source: pytorch/torchtitan, distributed/expert_parallel.py (`ExpertParallel`) and
models/moe/utils.py (`_permute`, `_unpermute`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from plimsoll.service.worker.training.parallel.experts import exchanged, mixtures, tensors_of_all

DISPATCHED_EXPERTS = "plimsoll_dispatched"


def deal_experts(model: Any, group: dist.ProcessGroup) -> None:
    """Leave each layer the first rank's experts, and send tokens among the ranks of the group."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(DISPATCHED_EXPERTS, dispatched_experts)
    model.config._experts_implementation = DISPATCHED_EXPERTS
    for experts in mixtures(model):
        held = experts.num_experts // group.size()
        for name in tensors_of_all(experts):
            whole = getattr(experts, name)
            setattr(experts, name, nn.Parameter(torch.empty(held, *whole.shape[1:], dtype=whole.dtype)))
        experts.num_experts, experts.expert_group = held, group


def dispatched_experts(experts: Any, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the experts' weighted sum for `hidden` [tokens, hidden], of which each rank has as many.

    `chosen` and `weights` are [tokens, experts a token].
    """
    per_token = chosen.size(-1)
    by_expert, order = torch.sort(chosen.reshape(-1))
    sent = hidden[order // per_token]
    counts = torch.histc(by_expert.float(), bins=experts.num_experts, min=0, max=experts.num_experts - 1)
    ends = torch.cumsum(counts, dim=0, dtype=torch.int32)
    received, places = _received(sent, experts.expert_group)
    returned = _returned(_outputs(experts, received, ends), places, experts.expert_group)
    del received
    weighted = returned * weights.reshape(-1)[order].unsqueeze(-1)
    back = torch.empty_like(order)
    back[order] = torch.arange(order.size(0))
    return weighted[back].view(-1, per_token, hidden.size(-1)).sum(dim=1).to(hidden.dtype)


# What each of the next three makes on its way is let go of as it returns, as by torchtitan's hooks.


def _received(sent: torch.Tensor, group: dist.ProcessGroup) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens of this rank's experts, expert by expert, and the places that they came from."""
    received = exchanged(sent, group)
    padded = torch.vstack((received, received.new_zeros(received.size(-1))))
    places = torch.zeros(received.size(0), dtype=torch.int64)
    return padded[places], places


def _outputs(experts: Any, received: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    from transformers.integrations.moe import _grouped_linear

    is_transposed = experts.is_transposed
    bias = _of_each_token(experts, "gate_up_proj_bias", received)
    inner = _grouped_linear(received, experts.gate_up_proj, ends, bias=bias, is_transposed=is_transposed)
    inner = experts._apply_gate(inner)
    bias = _of_each_token(experts, "down_proj_bias", received)
    outputs: torch.Tensor = _grouped_linear(inner, experts.down_proj, ends, bias=bias, is_transposed=is_transposed)
    return outputs


def _of_each_token(experts: Any, name: str, received: torch.Tensor) -> torch.Tensor | None:
    """Return the bias of each token's expert, None where there is none.

    torchtitan repeats biases as transformers picks them (models/gpt_oss/model/moe.py, `_run_experts_grouped_mm`).
    """
    if not experts.has_bias:
        return None
    bias: torch.Tensor = getattr(experts, name)[torch.zeros(received.size(0), dtype=torch.int64)]
    return bias


def _returned(outputs: torch.Tensor, places: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Return this rank's own tokens from the ranks that worked on them."""
    in_order = outputs.new_empty(outputs.size(0) + 1, outputs.size(1))
    in_order[places] = outputs
    return exchanged(in_order[:-1], group)
