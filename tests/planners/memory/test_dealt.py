"""Parameters dealt whole over ranks, by hand; held to Megatron-Core's own dealing where its optimizer is traced."""

import pytest

from plimsoll.planners.ground.errors import InvalidQuestion
from tests.planners.factories import small_llama, small_mixtral
from tests.planners.training_cases import asked, job, memory

# Parameters of small_llama as Megatron-Core has them, the smallest first: nine norms of 64; in each of four layers the
# output's matrix of 4,096, query with key and value of 8,192, down of 8,192 and gate with up of 16,384; embedding and
# head of 1,024 rows, 65,536 each.
NORM, OUTPUT, QUERY, INNER, TABLE = 64, 4096, 8192, 16_384, 65_536
MATRIX_BYTES, OTHER_BYTES = 8, 12  # a copy in fp32 with one moment, or with two


def optimizer_bytes(ranks, *, zero_stage=1, model=None, **layout):
    degrees = {"data_parallel": ranks, "shard_group": ranks, "zero_stage": zero_stage, **layout}
    question = asked("megatron", layout=degrees, model=model or small_llama(), optimizer="muon", gpus=ranks)
    return question.held.optimizer.max()


@pytest.mark.parametrize("ranks", [1, 7])
def test_without_dealing_every_rank_has_all(ranks):
    matrices = 4 * (OUTPUT + 2 * QUERY + INNER)
    assert optimizer_bytes(ranks, zero_stage=0) == MATRIX_BYTES * matrices + OTHER_BYTES * (2 * TABLE + 9 * NORM)


def test_two_ranks_are_dealt_to_in_turns_of_two():
    # 27 parameters: of every four one rank gets the first and the last, the other those between, and so both tables,
    # which are the 26th and the 27th.
    order = [NORM] * 9 + [OUTPUT] * 4 + [QUERY] * 8 + [INNER] * 4 + [TABLE] * 2
    fuller = [size for place, size in enumerate(order) if place % 4 in (1, 2)]
    assert fuller[-2:] == [TABLE, TABLE]
    others = {NORM: OTHER_BYTES, TABLE: OTHER_BYTES}
    assert optimizer_bytes(2) == sum(others.get(size, MATRIX_BYTES) * size for size in fuller)


def test_more_ranks_than_parameters_leave_the_table_on_one():
    assert optimizer_bytes(1000) == OTHER_BYTES * TABLE


@pytest.mark.parametrize("expert_parallel", [1, 2, 4])
def test_experts_are_dealt_over_the_ranks_that_have_the_same(expert_parallel):
    # Two layers' four experts have inner matrices of 16,384 and outer ones of 8,192: however they are divided first, a
    # rank of four has two of each. Of 13 other parameters both tables, the 12th and the 13th, are one rank's, which has
    # the 4th and the 5th, two norms, as well.
    experts = 2 * MATRIX_BYTES * (16_384 + 8192)
    others = OTHER_BYTES * (2 * TABLE + 2 * NORM)
    assert optimizer_bytes(4, model=small_mixtral(), expert_parallel=expert_parallel) == experts + others


def test_updated_parameters_are_gathered_as_copies_of_all_and_of_the_rank_s_own():
    # In 2 bytes: all, and the embedding's rank's own 65,536 of a thousand ranks.
    elements = 4 * (OUTPUT + 2 * QUERY + INNER) + 2 * TABLE + 9 * NORM
    held = asked(
        "megatron",
        layout={"data_parallel": 1000, "shard_group": 1000, "zero_stage": 1},
        model=small_llama(),
        optimizer="muon",
        gpus=1000,
    ).held
    assert held.update_gather_bytes.max() == 2 * (elements + TABLE)


def test_nothing_is_gathered_where_nothing_is_dealt():
    plan = memory(
        "megatron", layout={"zero_stage": 0}, model=small_llama(), optimizer="muon", gpus=1, sequence_length=1
    )
    states = MATRIX_BYTES * 4 * (OUTPUT + 2 * QUERY + INNER) + OTHER_BYTES * (2 * TABLE + 9 * NORM)
    # The update of gate and up, 256 x 64, three times in fp32.
    assert plan.phase == "optimizer step"
    assert plan.items.optimizer == states + 12 * INNER


def test_muon_runs_in_no_fp16():
    with pytest.raises(InvalidQuestion, match=r"runs in precision bf16-mixed, .* or fp32, not in fp16-mixed"):
        job("megatron", optimizer="muon", precision="fp16-mixed")


def test_muon_s_traffic_hides_where_it_is_asked_to_and_not_elsewhere():
    muon, adam = (job("megatron", optimizer=optimizer).overlap for optimizer in ("muon", "adamw"))
    assert (muon.gradients, muon.parameters) == (False, False)
    assert (adam.gradients, adam.parameters) == (True, True)
