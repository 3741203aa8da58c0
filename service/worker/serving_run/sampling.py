"""What an engine's sampler allocates for rows of logits.

Source: vllm/v1/sample/ops/topk_topp_sampler.py (up to 0.16 apply_top_k_top_p sorts all logits; since then
a kernel works in place), sampler.py (logits in fp32, divided in place by the temperature); transformers,
generation/utils.py, _sample.
"""

from __future__ import annotations

import torch

# What a logit costs in planned bytes tells the two apart: `engines/vllm.toml`, 36 where it sorts and 12.5 where not.
SORTING_BYTES_PER_LOGIT = 24.0


def sampled(logits: torch.Tensor, *, sorts: bool) -> torch.Tensor:
    """Return a token for each row of logits [rows, vocabulary]."""
    wide = logits.to(torch.float32)
    wide.div_(1.0)
    if sorts:
        wide = _top_p(wide)
    probabilities = wide.softmax(dim=-1, dtype=torch.float32)
    noise = torch.empty_like(probabilities).exponential_()
    return probabilities.div_(noise).argmax(dim=-1)


def _top_p(logits: torch.Tensor) -> torch.Tensor:
    """Return the logits with all but the likeliest put out, by a sort of every row."""
    ordered, places = logits.sort(dim=-1, descending=False)
    sums = ordered.softmax(dim=-1)
    torch.cumsum(sums, dim=-1, out=sums)
    ordered.masked_fill_(sums <= 0.0, -float("inf"))
    return logits.scatter_(dim=-1, index=places, src=ordered)
