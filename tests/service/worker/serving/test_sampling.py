"""What a sampler takes, and that it samples."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from plimsoll.service.worker.serving.sampling import Sampler


class Allocations(TorchDispatchMode):
    """The shapes of all tensors made empty."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.new_empty.default:
            self.shapes.append(tuple(result.shape))
        return result


@pytest.mark.parametrize("sorts", [False, True])
def test_a_token_that_is_certain_is_taken(sorts):
    logits = torch.full((3, 50), -1e4, dtype=torch.bfloat16)
    logits[range(3), [7, 0, 49]] = 0.0
    assert Sampler(sorts=sorts, scratch_rows=0).sampled(logits).tolist() == [7, 0, 49]


@pytest.mark.parametrize(("rows", "kept"), [(1, 1), (2, 2), (3, 2)])
def test_a_search_keeps_a_row_for_each_program_and_no_more_than_there_are(rows, kept):
    sampler = Sampler(sorts=False, scratch_rows=2)
    with Allocations() as made:
        sampler.sampled(torch.zeros(rows, 50))
        sampler.sampled(torch.zeros(rows, 50))
    assert made.shapes.count((kept, 50)) == 1
