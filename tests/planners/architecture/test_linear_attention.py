"""The sizes of delta rules and lightning attention, and how tensor parallelism divides their weights."""

from __future__ import annotations

import pytest

from plimsoll.planners.architecture import Weight
from plimsoll.planners.architecture.linear_attention import GatedDelta, KimiDelta, LightningAttention
from plimsoll.planners.architecture.mamba import Mamba, Mamba2

# Qwen3.5-27B's layer.
QWEN = GatedDelta(
    hidden_size=5120, key_heads=16, value_heads=48, key_head_dim=128, value_head_dim=128, kernel=4, is_grouped=False
)
GROUPED = GatedDelta(
    hidden_size=2048, key_heads=16, value_heads=32, key_head_dim=128, value_head_dim=128, kernel=4, is_grouped=True
)
KIMI = KimiDelta(hidden_size=2304, heads=32, head_dim=128, kernel=4)
LIGHTNING = LightningAttention(hidden_size=6144, heads=64, head_dim=128)
MAMBA2 = Mamba2(hidden_size=4480, heads=128, head_dim=80, groups=8, state_size=128, kernel=4, chunk=128)
MAMBA = Mamba(hidden_size=64, inner_width=128, state_size=6, kernel=4, step_rank=4, has_selection_norms=True)


def by_name(weights: tuple[Weight, ...]) -> dict[str, Weight]:
    return {weight.name.removeprefix("x."): weight for weight in weights}


def test_a_gated_delta_layer_remembers_a_matrix_for_each_value_head() -> None:
    state = QWEN.mixer().kv_state().recurrent
    assert state is not None
    assert state.memory_elements == 786_432  # 48 x 128 x 128
    # Queries and keys 2 x 16 x 128, values 48 x 128 = 10,240 channels, three tokens of each.
    assert state.convolution_elements == 30_720


def test_the_delta_rule_costs_seven_operations_an_element_and_lightning_five() -> None:
    assert QWEN.mixer().flops_per_state_element == KIMI.mixer().flops_per_state_element == 7.0
    assert LIGHTNING.mixer().flops_per_state_element == 5.0


def test_grouped_and_separate_projections_hold_the_same_features() -> None:
    # Convolved 2 x 2,048 + 4,096, gate 4,096; strength and decay 32 each.
    assert [projection.width for projection in GROUPED.mixer().projections] == [12_288, 64]
    weights = by_name(GROUPED.weights("x"))
    assert weights["in_proj_qkvz.weight"].shape == (12_288, 2048)
    assert weights["in_proj_ba.weight"].shape == (64, 2048)
    assert [projection.width for projection in QWEN.mixer().projections] == [10_240, 6144, 48, 48]


@pytest.mark.parametrize(
    ("ranks", "local"),
    [
        (2, 5120),  # 8 query and 8 key heads, 24 value heads, 128 features each
        (16, 640),  # one, one and three
        (32, 512),  # one, one (each on two ranks) and two: the fullest of the ranks
    ],
)
def test_queries_keys_and_values_are_each_divided_by_their_own_heads(ranks: int, local: int) -> None:
    weights = by_name(QWEN.weights("x"))
    assert weights["in_proj_qkv.weight"].local_shape(ranks) == (local, 5120)
    assert weights["conv1d.weight"].local_shape(ranks) == (local, 1, 4)


def test_the_latents_of_kimis_gates_stand_on_every_rank() -> None:
    weights = by_name(KIMI.weights("x"))
    assert weights["f_a_proj.weight"].local_shape(8) == (128, 2304)
    assert weights["f_b_proj.weight"].local_shape(8) == (512, 128)
    assert weights["A_log"].local_shape(8) == (1, 1, 4, 1)
    assert weights["o_proj.weight"].local_shape(8) == (2304, 512)


def test_kimis_delta_layer_counted_by_hand() -> None:
    # q, k, v and o 4 x 4,096 x 2,304; three convolutions 3 x 4,096 x 4; decay and gate 2 x (128 x 2,304 + 4,096 x 128);
    # strength 32 x 2,304; A 32, dt 4,096, norm 128.
    assert sum(weight.elements for weight in KIMI.weights("x")) == 39_514_272


def test_a_lightning_layer_counted_by_hand() -> None:
    # QKV 3 x 8,192 x 6,144, gate and output 8,192 x 6,144 each, norm 8,192.
    assert sum(weight.elements for weight in LIGHTNING.weights("x")) == 251_666_432


def test_mamba_2_divides_heads_and_replicates_groups_fewer_than_the_ranks() -> None:
    projection = by_name(MAMBA2.weights("x"))["in_proj.weight"]
    # Gate and x 2 x 10,240, B and C 2 x 1,024, steps 128.
    assert projection.shape == (22_656, 4480)
    # On 16 ranks: 8 heads of gate and of x 2 x 640, one group of B and of C 2 x 128, 8 steps.
    assert projection.local_shape(16) == (1544, 4480)


def test_jambas_step_and_mixings_each_have_a_norm() -> None:
    weights = by_name(MAMBA.weights("x"))
    names = ("dt_layernorm.weight", "b_layernorm.weight", "c_layernorm.weight")
    assert [weights[name].shape for name in names] == [(4,), (6,), (6,)]
    assert weights["in_proj.weight"].local_shape(2) == (128, 64)
