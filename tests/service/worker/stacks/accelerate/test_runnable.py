import os
import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fully_shard
from torch.nn.parallel import distributed

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.proofs.device.running import held_bytes
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


def what_accelerate_knows():
    from accelerate.state import AcceleratorState, GradientState, PartialState

    return [dict(state._shared_state) for state in (AcceleratorState, GradientState, PartialState)]


@pytest.fixture
def alone():
    """accelerate as a program leaves it that found itself alone, as transformers' TrainingArguments do."""
    from accelerate.state import PartialState

    yield PartialState(cpu=True)
    PartialState._reset_state()


@pytest.mark.parametrize("stage", [0, 3])
def test_what_accelerate_is_given_to_run_is_taken_back(stage):
    traced(zero_stage=stage)  # what a first import sets, stays
    before, known = what_is_changed(), what_accelerate_knows()
    traced(zero_stage=stage)
    assert what_is_changed() == before
    assert what_accelerate_knows() == known
    assert not dist.is_initialized()


def test_what_accelerate_found_before_a_trace_says_nothing_of_its_ranks(alone):
    known = what_accelerate_knows()
    sharded, replicated = (held_bytes(traced(zero_stage=stage))["parameter"] for stage in (3, 0))
    assert alone.num_processes == 1
    assert 0.25 <= sharded / replicated < 0.26  # of 4 ranks, and what a shard is padded with
    assert what_accelerate_knows() == known


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
