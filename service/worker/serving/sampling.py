"""What an engine's sampler allocates for rows of logits.

Source: vllm/v1/sample/ops/topk_topp_sampler.py (up to 0.16 apply_top_k_top_p sorts all logits), since then
topk_topp_triton.py (apply_top_k_top_p_triton works in place, with a row of the vocabulary for each of its programs,
which it keeps); sampler.py (logits in fp32, divided in place by the temperature); transformers, generation/utils.py,
_sample.
"""

from __future__ import annotations

import torch

# What a logit costs in planned bytes tells the two apart: `engines/vllm.toml`, 36 where it sorts and 12.5 where not.
SORTING_BYTES_PER_LOGIT = 24.0


class Sampler:
    """An engine's sampler: it `sorts` every row, or keeps `scratch_rows` rows of the vocabulary to search in."""

    def __init__(self, *, sorts: bool, scratch_rows: int) -> None:
        self._sorts, self._scratch_rows = sorts, scratch_rows
        self._scratch: dict[tuple[int, ...], torch.Tensor] = {}

    def sampled(self, logits: torch.Tensor) -> torch.Tensor:
        """Return a token for each row of logits [rows, vocabulary]."""
        wide = logits.to(torch.float32)
        wide.div_(1.0)
        if self._sorts:
            wide = _top_p(wide)
        self._keep_scratch(wide)
        probabilities = wide.softmax(dim=-1, dtype=torch.float32)
        noise = torch.empty_like(probabilities).exponential_()
        return probabilities.div_(noise).argmax(dim=-1)

    def _keep_scratch(self, wide: torch.Tensor) -> None:
        shape = (min(self._scratch_rows, wide.shape[0]), wide.shape[1])
        if shape[0] and shape not in self._scratch:
            self._scratch[shape] = wide.new_empty(shape)


def _top_p(logits: torch.Tensor) -> torch.Tensor:
    """Return the logits with all but the likeliest put out, by a sort of every row."""
    ordered, places = logits.sort(dim=-1, descending=False)
    sums = ordered.softmax(dim=-1)
    torch.cumsum(sums, dim=-1, out=sums)
    ordered.masked_fill_(sums <= 0.0, -float("inf"))
    return logits.scatter_(dim=-1, index=places, src=ordered)
