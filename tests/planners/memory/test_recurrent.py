"""What recurrent layers keep. The layers here have 64 hidden features; bytes are for each token, in 16 bits."""

import dataclasses

import pytest

from plimsoll.planners.architecture import Block
from plimsoll.planners.architecture.decoder import decoder_layer, recurrent_half
from plimsoll.planners.architecture.linear_attention import GatedDelta, KimiDelta
from plimsoll.planners.architecture.mamba import Mamba, Mamba2
from plimsoll.planners.memory.activations import saved_bytes
from plimsoll.planners.memory.recurrent import scan_workspace_bytes
from plimsoll.planners.stacks.profile import load_profile

OUTSIDE = load_profile("megatron").kernels
FUSED = dataclasses.replace(OUTSIDE, fuses_scan_output=True)
MAMBA = Mamba(hidden_size=64, inner_width=128, state_size=16, kernel=4, step_rank=4)
# Gate 128, x, B and C 128 + 2 x 16, step 4: 292 projected features.
MAMBA_2 = Mamba2(hidden_size=64, heads=4, head_dim=32, groups=1, state_size=16, kernel=4, chunk=16)
# Queries and keys 2 x 32, values 128, gate 128: 320; strength and decay 8.
DELTA = GatedDelta(
    hidden_size=64, key_heads=2, value_heads=4, key_head_dim=16, value_head_dim=32, kernel=4, is_grouped=True
)
KIMI = KimiDelta(hidden_size=64, heads=4, head_dim=16, kernel=4)
# The layer's input, its norm's statistic, and the input of the first projections.
BEFORE = 2 * 64 + 4 + 2 * 64


def layer(size) -> Block:
    mixer = size.mixer()
    return decoder_layer(
        layers=(0,), hidden_size=64, mixer=recurrent_half(mixer), feed_forward=None, weights=(), kv=mixer.kv_state()
    )


def kept(size, kernels=FUSED):
    return saved_bytes(layer(size), kernels, attention="flash", element_bytes=2)


def test_mamba_keeps_projections_output_and_states_of_chunks():
    found = kept(MAMBA)
    # Step, B and C 4 + 2 x 16 features, and B and C once more.
    assert found.sequence_bytes == BEFORE + 2 * 36 + 2 * 32
    # Both halves of the projection, the output before the gate, twice 128 x 16 fp32 elements every 2,048 tokens.
    assert found.tensor_bytes == 2 * 256 + 2 * 128 + 2 * 4 * 128 * 16 / 2048


def test_norms_of_step_and_mixing_take_mamba_apart():
    whole, apart = kept(MAMBA), kept(dataclasses.replace(MAMBA, has_selection_norms=True))
    # Convolved channels, step and the gated output, which the fused kernel computes again.
    assert apart.tensor_bytes - whole.tensor_bytes == 3 * 2 * 128


def test_mamba_2_keeps_its_projection_and_its_output():
    found = kept(MAMBA_2)
    assert found.tensor_bytes == 2 * 292 + 2 * 128
    assert found.sequence_bytes == BEFORE + 4  # the gated norm's statistic


def test_a_norm_outside_of_the_kernel_keeps_its_input_and_gives_the_projection_another():
    assert kept(MAMBA_2, OUTSIDE).tensor_bytes - kept(MAMBA_2).tensor_bytes == 2 * 2 * 128


def test_a_fused_gated_norm_keeps_no_upcast():
    upcast = dataclasses.replace(FUSED, norm_keeps_fp32=True)
    assert kept(MAMBA_2, upcast).tensor_bytes == kept(MAMBA_2).tensor_bytes


def test_a_gated_delta_rule_keeps_repeated_queries_and_its_chunk_matrix():
    # Four heads: query and key 16 each, value 32; two fp32 norms, fp32 decay, strength, a row of 64 of the chunk.
    kernel = 4 * (2 * (16 + 16 + 32) + 2 * 4 + 4 + 2 + 2 * 64)
    assert kept(DELTA).tensor_bytes == 2 * 320 + 2 * 8 + 2 * 128 + 2 * 128 + kernel


def test_transformers_gives_the_kernel_keys_of_their_own_heads_and_norms_in_separate_operations():
    # Two heads of queries and keys of 16, two fp32 norms; four heads of values of 32, decay, strength and chunk.
    kernel = 2 * 2 * (2 * 16) + 2 * 2 * 4 + 4 * (2 * 32 + 4 + 2 + 2 * 64)
    # Of each head the root of the norm's mean, and its decay twice, in fp32. The convolution's 192 channels, the
    # output's input, and of what is normed: twice in fp32 (it and its gate), the gate's SiLU, normed and scaled.
    around = 3 * 4 * 4 + 2 * 192 + 2 * 128 + (3 * 4 + 2 * 2) * 128
    assert kept(DELTA, load_profile("accelerate").kernels).tensor_bytes == kernel + around


def test_a_decay_for_each_channel_is_kept_in_fp32_and_scores_beside_the_solution():
    kernel = 4 * (2 * 3 * 16 + 2 * 4 + 4 * 16 + 2 + 2 * 2 * 64)
    # Queries, keys and values 192, strength 4, decay 64, gate 64, output and gated output 64 each.
    assert kept(KIMI).tensor_bytes == 2 * (192 + 4 + 64 + 64 + 64 + 64) + kernel
    # Decay and gate pass a latent of one head.
    assert kept(KIMI).sequence_bytes == BEFORE + 4 + 2 * 2 * 16


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        # What the scan was given, projected and convolved: 256 + 128 + 36 + 128.
        (MAMBA, 2 * 548),
        # Which `state_space.py` counts by chunks of whole sequences.
        (MAMBA_2, 0),
        # 320 + 8 + 192, and 16-bit states of 4 x 16 x 32 twice every 64 tokens.
        (DELTA, 2 * 520 + 2 * 2 * 2048 / 64),
    ],
)
def test_the_backward_pass_computes_states_again(size, expected):
    assert scan_workspace_bytes(layer(size), 2) == expected


def test_a_layer_without_recurrence_needs_no_room_for_one():
    plain = dataclasses.replace(layer(MAMBA), operations=())
    assert scan_workspace_bytes(plain, 2) == 0


@pytest.mark.parametrize("kernels", [FUSED, OUTSIDE])
def test_autocast_leaves_what_stands_behind_a_recurrence_in_sixteen_bits(kernels):
    # The norm of the residual stream is cast, the one behind the kernel is a kernel of its own.
    cast = saved_bytes(layer(MAMBA_2), kernels, attention="flash", element_bytes=2, autocast=True)
    assert cast.tensor_bytes == kept(MAMBA_2, kernels).tensor_bytes
