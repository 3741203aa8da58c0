"""Optimizers whose update is one kernel in place: their states by rule, and nothing beside them.

Source: bitsandbytes 0.50, optim/optimizer.py (`init_state`, `get_state_buffer`): states of fp32, or of one byte an
element with an fp32 scale for each block of 256, for tensors of 4,096 elements and more; `paged` ones of 100,000
elements and more lie in memory that the driver pages to the host. It takes no DTensors: of FSDP2's shards the states
are those of the local part. transformers' Trainer keeps the embedding's states in fp32 (trainer.py,
`create_optimizer`), which is why the embedding is named apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from plimsoll.service.worker.jobs.kernel_rules import KERNEL_RULES
from plimsoll.service.worker.recording.host_memory import on_host
from plimsoll.service.worker.recording.tracker import local_tensor

SCALE_BLOCK_ELEMENTS = 256
LEAST_8BIT_ELEMENTS = 4096  # min_8bit_size
LEAST_PAGED_ELEMENTS = 100_000


class KernelOptimizer:
    """An optimizer of `KERNEL_RULES`; `wide` parameters have states in fp32 whatever the rule says."""

    def __init__(self, name: str, parameters: Iterable[nn.Parameter], wide: Iterable[torch.Tensor] = ()) -> None:
        self._rule = KERNEL_RULES[name]
        self._parameters = list(parameters)
        self._wide = {id(parameter) for parameter in wide}
        self._states: dict[int, list[tuple[str, torch.Tensor]]] = {}

    def step(self) -> None:
        """Update the parameters that have gradients, in place; the first time their states are made."""
        for parameter in self._parameters:
            if parameter.grad is not None and id(parameter) not in self._states:
                self._states[id(parameter)] = list(self._new_states(parameter))

    def zero_grad(self) -> None:
        """Drop the gradients' tensors."""
        for parameter in self._parameters:
            parameter.grad = None

    def named_states(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the states' tensors, once they exist."""
        for states in self._states.values():
            yield from states

    def _new_states(self, parameter: nn.Parameter) -> Iterator[tuple[str, torch.Tensor]]:
        elements = local_tensor(parameter).numel()
        is_8bit = self._rule.is_8bit and elements >= LEAST_8BIT_ELEMENTS and id(parameter) not in self._wide
        for number in range(1, self._rule.states + 1):
            with on_host(self._rule.is_paged and elements >= LEAST_PAGED_ELEMENTS):
                yield f"state{number}", torch.empty(elements, dtype=torch.uint8 if is_8bit else torch.float32)
            if is_8bit:
                blocks = -(-elements // SCALE_BLOCK_ELEMENTS)
                yield f"absmax{number}", torch.empty(blocks, dtype=torch.float32)
