"""What a sampler takes, and that it samples."""

import pytest
import torch

from service.worker.serving_run.sampling import sampled


@pytest.mark.parametrize("sorts", [False, True])
def test_a_token_that_is_certain_is_taken(sorts):
    logits = torch.full((3, 50), -1e4, dtype=torch.bfloat16)
    logits[range(3), [7, 0, 49]] = 0.0
    assert sampled(logits, sorts=sorts).tolist() == [7, 0, 49]
