"""The pools of FSDP2's streams, against traces of torch's own FSDP2 whose streams are told apart."""

import numpy as np
import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.units import MIB
from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.memory.programs.choice import events_of, pool_peaks, prepared, stage_peaks
from plimsoll.planners.memory.programs.question import question_of
from plimsoll.planners.memory.programs.stream_pools import GATHERED, POOLS, REDUCED, stream_peaks
from plimsoll.planners.memory.steps.on_rank import NO_BYTES
from tests.planners.factories import small_llama, small_mixtral
from tests.planners.training_cases import asked, events, job, memory

ALONE = {"data_parallel": 1, "shard_group": 1, "batch": 1}
HALVED = {"data_parallel": 4, "shard_group": 4, "tensor_parallel": 2, "sequence_parallel": 1, "batch": 4}
LLAMA, QWEN = "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B"
FULL = 2


def question(name=LLAMA, *, batch=8, **layout):
    config = dict(catalogue().model(name).config) | {"num_hidden_layers": 4}
    degrees = {"data_parallel": 8, "shard_group": 8, "zero_stage": 3} | layout
    return asked(
        "fsdp2",
        model=describe_config(config, name=name),
        sequence_length=4096,
        layout=degrees,
        global_batch_size=batch,
    )


def pool(found, names):
    _, *others = pool_peaks(prepared(found), POOLS)
    return others[POOLS.index(names)].max() / MIB


@pytest.mark.parametrize(
    ("found", "main_mib", "reduced_mib"),
    # Peaks of the streams of one rank's trace: models of four layers, 4096 tokens, torch 2.13.
    [
        (question(), 13033, 917),
        (question(batch=32), 13033, 1168),
        (question(shard_group=4), 15784, 1834),
        (question(zero_stage=2), 15699, 917),
        (question(**ALONE), 32291, 7336),
        (question(**HALVED, recompute=FULL), 7406, 917),
        (question(QWEN), 15278, 1485),
        (question(QWEN, expert_parallel=2, recompute=FULL), 12301, 1485),
    ],
    ids=["plain", "accumulated", "replicated", "gathered once", "one rank", "tensor parallel", "mixture", "experts"],
)
def test_pools_of_main_stream_and_reductions_are_the_traces_own(found, main_mib, reduced_mib):
    assert stream_peaks(prepared(found), found.job).main.max() / MIB == pytest.approx(main_mib, abs=1)
    assert pool(found, REDUCED) == pytest.approx(reduced_mib, abs=1)


@pytest.mark.parametrize(
    ("found", "traced_mib", "cast_mib"),
    # A trace has the widest unit's own shard in 16 bits besides: of the 1002 MiB of Llama's embedding an eighth or a
    # quarter, of the 594 MiB of Qwen's.
    [
        (question(), 1543, 125),
        (question(shard_group=4), 1669, 250.5),
        (question(QWEN, expert_parallel=4), 956, 74),
        (question(QWEN), 2526, 149),
    ],
    ids=["plain", "replicated", "experts", "mixture"],
)
def test_the_pool_of_gathers_is_the_trace_s_but_for_the_cast_of_the_rank_s_own_shard(found, traced_mib, cast_mib):
    assert pool(found, GATHERED) == pytest.approx(traced_mib - cast_mib, abs=2)


def most_of(found, row, counts):
    """Return the most that the events of one stage hold of pieces whose names count."""
    held = most = 0
    for event in events_of(prepared(found), row, 0):
        held += event.change if counts(event.name) else 0
        most = max(most, held)
    return most


@pytest.mark.parametrize(
    "layout",
    [
        {"expert_parallel": 2, "recompute": FULL},
        {"expert_parallel": 4, "shard_group": 4},
        {"data_parallel": 4, "shard_group": 4, "pipeline_parallel": 2, "batch": 32},
        {"data_parallel": 2, "shard_group": 2, "pipeline_parallel": 2, "virtual_pipeline": 2, "batch": 8},
        {"zero_stage": 2, "batch": 32},
    ],
    ids=str,
)
def test_a_pool_s_most_is_that_over_its_events(layout):
    found = question(QWEN, **layout)
    stages, apart = found.rows.stage.shape, GATHERED | REDUCED
    peaks = stream_peaks(prepared(found), found.job)
    for row in range(stages[0]):
        main = most_of(found, row, lambda name: name not in apart)
        others = sum(most_of(found, row, pool.__contains__) for pool in (GATHERED, REDUCED))
        assert np.broadcast_to(peaks.main, stages)[row, 0] == main
        assert np.broadcast_to(peaks.others, stages)[row, 0] == others


def test_a_layout_s_pools_are_the_same_in_a_list_as_alone():
    rows = [
        {"data_parallel": 4, "shard_group": 4, "zero_stage": 3, "expert_parallel": degree, "recompute": recompute}
        for degree in (1, 2, 4)
        for recompute in (0, FULL)
    ]
    own = job("fsdp2", model=small_mixtral(), gpus=4, sequence_length=32, global_batch_size=4)
    together = stream_peaks(prepared(question_of(candidates_from_rows(rows), own)), own)
    alone = [stream_peaks(prepared(question_of(candidates_from_rows([row]), own)), own) for row in rows]
    for name in ("main", "others"):
        in_list = np.broadcast_to(getattr(together, name), (1, len(rows)))[0]
        assert in_list.tolist() == [getattr(each, name).item() for each in alone]


def test_one_rank_gathers_nothing():
    assert pool(question(**ALONE), GATHERED) == 0


def test_pools_together_are_never_less_than_what_is_allocated_at_once():
    found = question()
    peaks = stream_peaks(prepared(found), found.job)
    assert np.all(peaks.main + peaks.others >= stage_peaks(prepared(found)))


def test_a_stack_of_one_stream_has_one_pool():
    found = asked("litgpt", model=small_llama(), sequence_length=32, layout={"data_parallel": 2, "zero_stage": 3})
    peaks = stream_peaks(prepared(found), found.job)
    assert peaks.others is NO_BYTES
    assert peaks.main.tolist() == stage_peaks(prepared(found)).tolist()


def test_every_name_of_a_pool_is_a_piece_s():
    layout = {"data_parallel": 4, "shard_group": 4, "zero_stage": 3}
    steps = (
        events("fsdp2", model=small_mixtral(), sequence_length=32, layout=layout | {"expert_parallel": 2}),
        events("fsdp2", model=small_llama(), sequence_length=32, global_batch_size=8, layout=layout),
        events_of(prepared(question("deepseek-ai/DeepSeek-V3", expert_parallel=2, recompute=FULL)), 0, 0),
    )  # fmt: skip
    names = {event.name for step in steps for event in step}
    assert names >= GATHERED | REDUCED
    assert {name for name in names if "gathered" in name} == GATHERED


def test_what_is_reserved_is_the_main_pool_s_surplus_and_the_other_pools():
    found = question()
    peaks = stream_peaks(prepared(found), found.job)
    layout = {"data_parallel": 8, "shard_group": 8, "zero_stage": 3}
    plan = memory("fsdp2", model=found.job.model, sequence_length=4096, layout=layout)
    surplus = found.job.profile.runtime.reserved_over_allocated
    assert plan.reserved_bytes == pytest.approx(surplus * peaks.main.max() + peaks.others.max(), abs=1)
    assert plan.reserved_bytes > surplus * plan.allocated_bytes
