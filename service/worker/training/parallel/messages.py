"""What a pipeline's stage receives: micro-batches from the stage before, and gradients from the one behind.

torch allocates a buffer for every micro-batch of a step and one for every gradient as the first step begins, and
keeps them (torch, distributed/pipelining/stage.py, `_setup_forward_recv_info`, `_create_grad_recv_info`); others
receive into a new tensor each time (Megatron-Core, pipeline_parallel/p2p_communication.py, `_communicate`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from plimsoll.service.worker.jobs.job import PipelineStage


class MessageBuffers:
    """A rank's buffers, for each of its chunks; nothing is ever received into them."""

    def __init__(self) -> None:
        self._micro_batches: list[list[torch.Tensor]] = []
        self._gradients: list[list[torch.Tensor]] = []

    def allocate(
        self, chunks: Sequence[PipelineStage], micro_batches: int, shape: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        """Allocate what a step of so many micro-batches receives, unless a step before has."""
        if self._micro_batches:
            return
        for chunk in chunks:
            received = 0 if chunk.is_first else micro_batches
            returned = 0 if chunk.is_last else micro_batches
            self._micro_batches.append([torch.empty(shape, dtype=dtype, requires_grad=True) for _ in range(received)])
            self._gradients.append([torch.empty(shape, dtype=dtype) for _ in range(returned)])

    def micro_batch(self, chunk: int, index: int) -> torch.Tensor:
        """Return what a chunk receives as its micro-batch with that index."""
        return self._micro_batches[chunk][index]

    def gradient(self, chunk: int, index: int) -> torch.Tensor:
        """Return the gradient of a chunk's output for that micro-batch."""
        return self._gradients[chunk][index]
