import numpy as np
import pytest

from plimsoll.planners.layouts.candidates import (
    FULL,
    NONE,
    any_of,
    candidates_from_rows,
    concatenate,
    hides_tensor_traffic,
    layout_of,
)
from plimsoll.planners.questions import Overlap, Recompute
from tests.planners.training_cases import job


def test_gpus_are_the_product_of_four_degrees():
    layouts = candidates_from_rows(
        [{"data_parallel": 2, "tensor_parallel": 3, "pipeline_parallel": 5, "context_parallel": 7}]
    )
    assert layouts.gpus.tolist() == [210]


def test_accumulation_follows_from_batch_replicas_and_micro_batch():
    layouts = candidates_from_rows([{"data_parallel": 4, "micro_batch_size": 2}])
    assert layouts.micro_batches(64).tolist() == [8]


def test_context_ranks_share_a_sequence():
    layouts = candidates_from_rows([{"context_parallel": 4, "micro_batch_size": 2}])
    assert layouts.local_tokens(8192).tolist() == [4096]


def test_a_layout_reads_as_clients_receive_it():
    layouts = candidates_from_rows([{"data_parallel": 8, "recompute": 2, "full_layers": 3, "offload": 1}])
    layout = layouts.layout(
        0, framework="megatron", global_batch_size=64, offload_target="cpu", pipeline_schedule="1f1b"
    )
    assert (layout.recompute, layout.recompute_layers, layout.offload) == ("full", 3, "optimizer")
    assert (layout.gpus, layout.gradient_accumulation_steps, layout.shard_group) == (8, 8, 8)


def test_a_layout_names_what_its_job_asks_for_where_it_has_it():
    asked = job("deepspeed", layout={"offload_target": "nvme"}, recompute=Recompute(mode="full", every=2))
    layouts = candidates_from_rows([{"recompute": FULL, "offload": 1, "zero_stage": 3}, {"recompute": NONE}])
    has, has_not = (layout_of(layouts, index, asked) for index in (0, 1))
    assert (has.offload_target, has.recompute_every, has.recompute_asked) == ("nvme", 2, {"every": 2})
    assert (has_not.offload_target, has_not.recompute_every, has_not.recompute_asked) == ("cpu", None, "none")


@pytest.mark.parametrize(("asked", "told"), [(None, False), (False, False), (True, True)])
def test_a_layout_says_whether_an_option_hides_tensor_parallel_traffic(asked: bool | None, told: bool):
    megatron = job("megatron", layout={"overlap": Overlap(tensor_parallel=asked)})
    layouts = candidates_from_rows([{"tensor_parallel": 2, "sequence_parallel": True}, {}])
    split, whole = (layout_of(layouts, index, megatron).overlap for index in (0, 1))
    assert (split.tensor_parallel, whole.tensor_parallel) == (told, False)
    # Its layers hide as much without.
    assert hides_tensor_traffic(layouts, megatron).tolist() == [True, False]


def test_concatenation_keeps_order():
    parts = [candidates_from_rows([{"data_parallel": count}]) for count in (2, 1, 4)]
    assert concatenate(parts).data_parallel.tolist() == [2, 1, 4]


@pytest.mark.parametrize(("values", "expected"), [([0.0, 0.0], False), ([0.0, -1.5], True), ([False, True], True)])
def test_any_value_that_is_not_zero_counts(values, expected: bool):
    assert any_of(np.array(values)) is expected


def test_there_is_none_without_values():
    assert any_of(np.zeros(0)) is False
