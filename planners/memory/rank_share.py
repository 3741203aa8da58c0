"""How layouts divide what a micro-batch's tokens save over their ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import Candidates, FloatArray, any_of
from plimsoll.planners.layouts.experts import busiest_rank_multiple, expert_tensor_ranks
from plimsoll.planners.memory.activations import SavedBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShare:
    """A rank's part of one micro-batch, for each layout.

    `tokens` are a rank's, `tensor` the ranks that divide a layer's matrices, `sequence_division` those that divide
    tokens between them too, `dispatch_division` those that divide the tokens sent to experts, and `busiest` the tokens
    of the rank with the most, as a multiple of the mean.
    """

    layouts: Candidates
    sequence_length: int
    tokens: FloatArray
    tensor: FloatArray
    sequence_division: FloatArray
    dispatch_division: FloatArray
    busiest: FloatArray

    def of(self, saved: SavedBytes) -> FloatArray:
        """Return the bytes that a rank saves of its micro-batch."""
        scores = saved.score_bytes * self.sequence_length
        divided = saved.sequence_bytes / self.sequence_division + (saved.tensor_bytes + scores) / self.tensor
        if _are_some(saved.ring_bytes):
            divided = divided + np.where(self.layouts.context_parallel > 1, saved.ring_bytes / self.tensor, 0.0)
        exchanged = saved.exchanged_bytes, saved.exchanged_alone_bytes
        if any(map(_are_some, exchanged)) and self.layouts.context_all_to_all.max(initial=1) > 1:
            alone = np.where(self.layouts.micro_batch_size == 1, exchanged[1], 0.0)
            twice = (exchanged[0] + alone) / self.tensor
            divided = divided + np.where(self.layouts.context_all_to_all > 1, twice, 0.0)
        if _are_some(saved.dispatched_bytes) or _are_some(saved.expert_bytes):
            in_experts = saved.dispatched_bytes / self.dispatch_division + saved.expert_bytes / self.tensor
            divided = divided + self.busiest * in_experts
        result: FloatArray = self.tokens * (saved.gathered_bytes + divided)
        return result

    def of_sequence(self, token_bytes: float | FloatArray) -> FloatArray:
        """Return a rank's bytes of what is divided as the sequence is."""
        result: FloatArray = self.tokens * token_bytes / self.sequence_division
        return result


def _are_some(amount: float | FloatArray) -> bool:
    """Return whether any layout saves anything of an amount, a number for all of them or one for each."""
    return bool(any_of(amount) if isinstance(amount, np.ndarray) else amount)


def rank_share(layouts: Candidates, job: Job) -> RankShare:
    """Return how the layouts divide the job's micro-batches."""
    tensor = layouts.tensor_parallel.astype(np.float64)
    sequence_division = np.where(layouts.sequence_parallel, tensor, 1.0)
    return RankShare(
        layouts=layouts,
        sequence_length=job.sequence_length,
        tokens=layouts.local_tokens(job.sequence_length),
        tensor=tensor,
        sequence_division=sequence_division,
        # Ranks that cut an expert among them gather the tokens that were sent to it.
        dispatch_division=np.maximum(sequence_division / expert_tensor_ranks(layouts, job), 1.0),
        busiest=busiest_rank_multiple(layouts, job),
    )
