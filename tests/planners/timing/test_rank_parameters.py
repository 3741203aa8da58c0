"""What of a model's parameters a rank computes with, updates and keeps frozen."""

import pytest

from plimsoll.planners.layouts.stages import all_stages
from plimsoll.planners.memory.holdings import holdings
from plimsoll.planners.timing.rank_parameters import (
    frozen_parameters,
    low_precision_parameters,
    stage_parameters,
    updated_parameters,
)
from tests.planners.timing.test_experts import EXPERT, MIXTRAL
from tests.planners.training_cases import job, one_layout

EXPERTS = 32 * 8 * EXPERT


def asked(framework="fsdp2", **changes):
    return job(framework, model=MIXTRAL, sequence_length=4096, global_batch_size=16, **changes)


def test_without_zero_a_rank_updates_its_share():
    one = one_layout(data_parallel=8, expert_parallel=8)
    megatron = asked("megatron")
    assert updated_parameters(one, megatron)[0] == pytest.approx(stage_parameters(one, megatron)[0])


@pytest.mark.parametrize("framework", ["fsdp2", "deepspeed", "megatron"])
@pytest.mark.parametrize("expert_parallel", [1, 2, 8])
def test_ranks_that_share_experts_leave_fewer_to_divide_their_states(framework, expert_parallel):
    stage = 1 if framework == "megatron" else 3
    one = one_layout(data_parallel=8, zero_stage=stage, expert_parallel=expert_parallel)
    # Eight ranks hold every expert's states once, however the experts are dealt out.
    others = MIXTRAL.parameters - EXPERTS
    assert updated_parameters(one, asked(framework))[0] == pytest.approx((EXPERTS + others) / 8, rel=1e-3)


def test_frozen_experts_lie_on_as_few():
    lora = asked("deepspeed", method="lora")
    whole, shared = (
        frozen_parameters(one_layout(data_parallel=8, zero_stage=3, expert_parallel=ranks), lora)[0] for ranks in (1, 8)
    )
    assert shared == pytest.approx(whole, rel=1e-3)
    assert whole == pytest.approx(MIXTRAL.parameters / 8, rel=1e-3)


def test_what_lies_in_8_bits_alone_are_the_layers_matrices_but_the_router_s():
    # Mixtral 8x7B: queries and output of 4,096 x 4,096, keys and values of 1,024 x 4,096, and the experts.
    attention = 2 * 4096 * 4096 + 2 * 1024 * 4096
    alone = asked("megatron", precision="fp8-mixed", low_precision_weights=True)
    layout = one_layout(data_parallel=8, zero_stage=1, expert_parallel=4)
    assert low_precision_parameters(layout, alone)[0] == pytest.approx(32 * attention + EXPERTS / 4)
    assert low_precision_parameters(layout, asked("megatron", precision="fp8-mixed"))[0] == 0.0


def test_where_everything_learns_nothing_is_frozen():
    assert frozen_parameters(one_layout(data_parallel=8, zero_stage=3), asked())[0] == 0.0


def test_what_is_updated_is_what_the_memory_planner_holds():
    one = one_layout(data_parallel=8, zero_stage=3, expert_parallel=4)
    fsdp2 = asked()
    held = holdings(one, all_stages(one, fsdp2), fsdp2).local_parameters
    assert updated_parameters(one, fsdp2)[0] == pytest.approx(float(held.max()), rel=1e-3)
