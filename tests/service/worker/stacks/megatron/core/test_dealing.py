"""Plans of Megatron's Muon, held to Megatron-Core's own optimizer and to its dealing of parameters over ranks."""

import pytest

from plimsoll.planners.families import describe_config
from plimsoll.service.worker.jobs.job import PipelineStage
from plimsoll.service.worker.recording.ledger import Kind
from tests.planners.training_cases import asked
from tests.service.worker.cases import config, requested_bytes, traced_once

LLAMA = config(vocab_size=256)
MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 12, "num_experts_per_tok": 2}
SMALL_BYTES = 64  # step counters


def traced(model, *, ranks, zero_stage=1, **layout):
    split = layout.get("tensor_parallel", 1) > 1
    return traced_once(
        framework="megatron",
        optimizer="muon",
        config=model,
        data_parallel=ranks,
        zero_stage=zero_stage,
        sequence_length=64,
        micro_batch_size=1,
        sequence_parallel=split,
        **layout,
    )


def planned(model, *, ranks, zero_stage=1, **layout):
    split = layout.get("tensor_parallel", 1) > 1
    degrees = {"data_parallel": ranks, "shard_group": ranks, "zero_stage": zero_stage, **layout}
    return asked(
        "megatron",
        layout={**degrees, "sequence_parallel": split},
        model=describe_config(model, name="small"),
        optimizer="muon",
        sequence_length=64,
        gpus=ranks * layout.get("tensor_parallel", 1) * layout.get("pipeline_parallel", 1),
    ).held


CASES = [
    (LLAMA, {"ranks": 4, "zero_stage": 0}),
    (LLAMA, {"ranks": 3}),
    (LLAMA | {"num_hidden_layers": 5}, {"ranks": 7}),
    (LLAMA, {"ranks": 2, "tensor_parallel": 2}),
    (LLAMA | {"tie_word_embeddings": True}, {"ranks": 5}),
    (LLAMA, {"ranks": 2, "context_parallel": 2}),
    (MIXTRAL, {"ranks": 6, "expert_parallel": 2}),
    (MIXTRAL, {"ranks": 4, "tensor_parallel": 2, "expert_parallel": 2}),
    (MIXTRAL, {"ranks": 4, "expert_parallel": 4}),
]


@pytest.mark.parametrize(("model", "layout"), CASES)
def test_the_fullest_rank_has_the_states_that_are_planned(model, layout):
    held = requested_bytes(traced(model, **layout), Kind.OPTIMIZER_STATE)
    assert held == pytest.approx(float(planned(model, **layout).optimizer.max()), abs=SMALL_BYTES)


def _dealt_cases():
    """Return those in which the fullest rank has one of the largest matrices too."""
    return [case for case in CASES if case[1].get("zero_stage", 1) and not case[0].get("tie_word_embeddings")]


@pytest.mark.parametrize(("model", "layout"), _dealt_cases())
def test_what_its_update_makes_is_the_larger_of_a_matrix_at_work_and_the_gathered_lists(model, layout):
    made = requested_bytes(traced(model, **layout), Kind.OPTIMIZER_TEMPORARY)
    held = planned(model, **layout)
    at_work = 12 * float(held.largest_matrix_elements.max())
    assert made == pytest.approx(max(at_work, float(held.update_gather_bytes.max())), abs=SMALL_BYTES)


@pytest.mark.parametrize("stage", [0, 1])
def test_every_stage_deals_what_it_holds(stage):
    model = LLAMA | {"num_hidden_layers": 4}
    part = PipelineStage(number=stage, stages=2, first_layer=2 * stage, last_layer=2 * stage + 1)
    ledger = traced_once(
        part,
        framework="megatron",
        optimizer="muon",
        config=model,
        data_parallel=3,
        pipeline_parallel=2,
        zero_stage=1,
        sequence_length=64,
        micro_batch_size=1,
        accumulation_steps=4,
    )
    held = planned(model, ranks=3, pipeline_parallel=2)
    states, gathered = (float(each.ravel()[stage]) for each in (held.optimizer, held.update_gather_bytes))
    assert requested_bytes(ledger, Kind.OPTIMIZER_STATE) == pytest.approx(states, abs=SMALL_BYTES)
    assert requested_bytes(ledger, Kind.OPTIMIZER_TEMPORARY) == pytest.approx(gathered, abs=SMALL_BYTES)


def test_a_matrix_at_work_is_there_three_times_in_fp32():
    # Gate and up are one of 352 x 64.
    made = requested_bytes(traced(LLAMA, ranks=4, zero_stage=0), Kind.OPTIMIZER_TEMPORARY)
    assert made == 3 * 4 * 352 * 64


def test_gradients_stay_whole_and_so_do_parameters():
    ledger, held = traced(LLAMA, ranks=3), planned(LLAMA, ranks=3)
    for kind, bytes_each in ((Kind.PARAMETER, 2), (Kind.GRADIENT, 4)):
        expected = bytes_each * float(held.stage_elements.max())
        assert requested_bytes(ledger, kind) == pytest.approx(expected, abs=2000)
