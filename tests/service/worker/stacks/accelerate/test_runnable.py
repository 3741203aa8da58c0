import os
import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fully_shard
from torch.nn.parallel import distributed

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.stacks.accelerate.runnable import as_it_is, numbered
from tests.service.worker.cases import traced


def what_is_changed():
    names = ("_verify_param_shape_across_processes", "_sync_module_states")
    return (
        dict(os.environ),
        _fully_shard._init_default_mesh,
        *(getattr(distributed, name) for name in names),
        dist.Reducer._rebuild_buckets,
    )


@pytest.mark.parametrize("stage", [0, 3])
def test_what_accelerate_is_given_to_run_is_taken_back(stage):
    from accelerate.state import AcceleratorState, GradientState, PartialState

    before = what_is_changed()
    traced(zero_stage=stage)
    assert what_is_changed() == before
    assert not any(state._shared_state for state in (AcceleratorState, GradientState, PartialState))
    assert not dist.is_initialized()


def test_a_worker_without_accelerate_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(NotYetAvailable, match=r"install plimsoll\[accelerate\]"):
        traced()


def test_parameters_are_told_apart_by_their_addresses_within_the_block():
    model = torch.nn.Linear(2, 3)
    real = [parameter.data_ptr() for parameter in model.parameters()]
    with numbered(model):
        assert [parameter.data_ptr() for parameter in model.parameters()] == [1, 2]
    assert [parameter.data_ptr() for parameter in model.parameters()] == real


def test_a_bucket_is_handed_back_as_it_is():
    class Bucket:
        def buffer(self):
            return gradients

    gradients = torch.ones(2)
    assert as_it_is(None, Bucket()).value() is gradients
