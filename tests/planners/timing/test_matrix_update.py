import math

import pytest

from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.planners.timing.efficiency import load_efficiency
from plimsoll.planners.timing.matrix_update import matrix_update_flops, matrix_update_seconds
from tests.planners.factories import llama, question, small_mixtral
from tests.planners.training_cases import job, one_layout, step


def test_muon_orthogonalizes_every_hidden_matrix_of_llama_3_8b():
    # 5 x (4 m^2 n + 2 m^3): query and output 4,096 x 4,096, key and value 1,024 x 4,096, three of 4,096 x 14,336.
    square = 6 * 4096**3
    narrow = 4 * 1024**2 * 4096 + 2 * 1024**3
    wide = 4 * 4096**2 * 14336 + 2 * 4096**3
    found = matrix_update_flops(job("reference", model=llama(), optimizer="muon"))
    assert found == pytest.approx(32 * 5 * (2 * square + 2 * narrow + 3 * wide))


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor", "lion", "sgd-momentum"])
def test_optimizers_that_work_by_element_multiply_nothing(optimizer):
    assert matrix_update_flops(job("reference", optimizer=optimizer)) == 0.0


def test_muon_s_products_are_in_the_optimizer_s_time():
    # 6.7e14 operations on each rank, at 989e12 a second at most.
    adamw, muon = (step("ddp", layout={"data_parallel": 8}, optimizer=one) for one in ("adamw", "muon"))
    assert muon.parts.optimizer - adamw.parts.optimizer > 0.67


def products(optimizer="muon", *, model=None, **layout):
    """Return the seconds that Muon's products take of a step with megatron, on one or more replicas."""
    degrees = {"data_parallel": 1, "shard_group": layout.get("data_parallel", 1), **layout}
    ranks = math.prod(degrees[name] for name in degrees if name.endswith("_parallel") and name != "expert_parallel")
    asked = question(framework="megatron", model=model or llama(), optimizer=optimizer, gpus=ranks)
    through = training_job(asked, load_profile("megatron"))
    found = matrix_update_seconds(one_layout(**degrees), through, asked.hardware, load_efficiency("megatron"))
    return float(found.max())


def operations(rows, columns):
    short, long = sorted((rows, columns))
    return 5 * (4 * short**2 * long + 2 * short**3)


# Llama 3 8B's layer as Megatron-Core updates it: gate and up are one matrix, queries, keys and values three.
QUERY, KEY, GATE, DOWN = (
    operations(4096, 4096),
    operations(1024, 4096),
    operations(28_672, 4096),
    operations(4096, 14336),
)
LAYER = 2 * QUERY + 2 * KEY + GATE + DOWN


def test_a_rank_alone_updates_every_matrix():
    assert products(zero_stage=0) / products(model=llama(num_hidden_layers=1), zero_stage=0) == pytest.approx(32)


def test_a_joined_matrix_takes_fewer_operations_than_two():
    # 4 m^2 n counts gate and up alike, 2 m^3 once.
    through = job("megatron", model=llama(), optimizer="muon")
    apart = matrix_update_flops(through) / 32
    assert apart - LAYER == pytest.approx(5 * 2 * 4096**3)


def test_the_busiest_of_ranks_sets_the_pace():
    # One layer's four matrices over seven ranks: gate and up are one rank's, and that is the most.
    one = llama(num_hidden_layers=1)
    of_all, dealt = (products(model=one, data_parallel=7, zero_stage=stage) for stage in (0, 1))
    assert dealt / of_all == pytest.approx(GATE / LAYER)


def test_ranks_of_one_layer_orthogonalize_their_own_blocks():
    # Two ranks: queries 2,048 x 4,096, keys 512 x 4,096, the output 4,096 x 2,048, gate and up 14,336 x 4,096.
    one = llama(num_hidden_layers=1)
    blocks = operations(2048, 4096) + 2 * operations(512, 4096) + operations(4096, 2048)
    blocks += operations(14_336, 4096) + operations(4096, 7168)
    whole, split = (products(model=one, tensor_parallel=ranks, zero_stage=0) for ranks in (1, 2))
    assert split / whole == pytest.approx(blocks / LAYER)


def test_experts_on_other_ranks_are_theirs_to_update():
    whole, half = (
        products(model=small_mixtral(), data_parallel=2, expert_parallel=ranks, zero_stage=0) for ranks in (1, 2)
    )
    expert = operations(256, 64) + operations(64, 128)
    others = 2 * operations(64, 64) + 2 * operations(32, 64) + operations(4, 64)
    assert half / whole == pytest.approx((2 * expert + others) / (4 * expert + others))


@pytest.mark.parametrize("stage", [0, 1])
def test_what_works_by_element_multiplies_nothing_on_any_rank(stage):
    assert products("adamw", zero_stage=stage) == 0.0
