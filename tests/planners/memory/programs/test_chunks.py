"""Interleaved stages of four DeepSeek layers, the first three dense: two stages have layers 0 and 2, and 1 and 3."""

import pytest

from plimsoll.planners.memory.programs.chunks import chunk_parts, goes_round_once
from tests.planners.sharding.models import DEEPSEEK, spec
from tests.planners.training_cases import asked

DENSE, MIXTURE = 0, 1


def question(batch=4, **layout):
    degrees = {"pipeline_parallel": 2, "virtual_pipeline": 2, "data_parallel": 2, "zero_stage": 3, **layout}
    model = spec(DEEPSEEK, num_hidden_layers=4, first_k_dense_replace=3)
    asking = {"sequence_length": 32, "gpus": 4, "global_batch_size": batch}
    return asked("fsdp2", divided="even", model=model, layout=degrees, **asking)


@pytest.mark.parametrize(
    ("kind", "below_highest", "lowest"),
    [(DENSE, [0.5, 1.0], [0.5, 1.0]), (MIXTURE, [1.0, 0.0], [0.0, 0.0])],
)
def test_layers_of_a_kind_are_in_the_chunks_that_they_were_dealt_to(kind, below_highest, lowest):
    parts = chunk_parts(question(), kind)
    assert parts.below_highest.reshape(-1).tolist() == below_highest
    assert parts.lowest.reshape(-1).tolist() == lowest


def test_stages_of_one_chunk_have_no_parts():
    assert chunk_parts(question(virtual_pipeline=1), DENSE) is None


@pytest.mark.parametrize(("batch", "once"), [(4, True), (8, False)])
def test_as_many_micro_batches_as_stages_go_round_once(batch, once):
    # Two replicas: two micro-batches each, or four.
    asked = question(batch)
    assert goes_round_once(asked.layouts, asked.job).reshape(-1).tolist() == [once]
