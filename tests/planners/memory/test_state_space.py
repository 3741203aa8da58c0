"""What lives as Mamba-2's scan is differentiated: four heads of 32 channels, one group, a state of 16, chunks of 64."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from plimsoll.planners.architecture.decoder import decoder_layer, feed_forward_half, recurrent_half
from plimsoll.planners.architecture.linear_attention import GatedDelta
from plimsoll.planners.architecture.mamba import Mamba2
from plimsoll.planners.memory.rank_share import RankShare
from plimsoll.planners.memory.state_space import live_at_scan, state_space_scan
from plimsoll.planners.stacks.profile import load_profile

FUSED = load_profile("ddp").kernels
OUTSIDE = load_profile("megatron").kernels
MAMBA_2 = Mamba2(hidden_size=64, heads=4, head_dim=32, groups=1, state_size=16, kernel=4, chunk=64)
DELTA = GatedDelta(
    hidden_size=64, key_heads=2, value_heads=4, key_head_dim=16, value_head_dim=32, kernel=4, is_grouped=True
)
PLAIN, CAST = np.array([False]), np.array([True])


def layer(size=MAMBA_2, feed_forward=None):
    mixer = size.mixer()
    half = recurrent_half(mixer)
    return decoder_layer(
        layers=(0,), hidden_size=64, mixer=half, feed_forward=feed_forward, weights=(), kv=mixer.kv_state()
    )


def scan(kernels=FUSED, block=None, **changes):
    sizes = {"attention": "flash", "element_bytes": 2, "learning": None} | changes
    return state_space_scan(block or layer(), kernels, **sizes)


def share(*, sequences=1, length=6400, tensor=1):
    return RankShare(
        layouts=SimpleNamespace(micro_batch_size=np.array([sequences]), context_parallel=np.array([1])),
        sequence_length=length,
        tokens=np.array([float(sequences * length)]),
        tensor=np.array([float(tensor)]),
        sequence_division=np.array([1.0]),
        dispatch_division=np.array([1.0]),
        busiest=np.array([1.0]),
    )


def test_other_layers_have_no_such_scan():
    assert scan(block=layer(DELTA)) is None
    assert scan(block=dataclasses.replace(layer(), operations=())) is None


def test_the_fused_kernel_makes_operands_and_gradients_beside_what_it_kept():
    found = scan()
    # The norm's input made again and two gradients, 128 each; x, B and C of 160 and their gradient; that of all 292
    # projected, and a copy of four steps.
    assert found.operand_bytes == 2 * (3 * 128 + 2 * 160 + 292 + 4)
    # 292 projected and 128 scanned.
    assert found.saved.tensor_bytes == 2 * (292 + 128)
    assert scan(OUTSIDE).operand_bytes == found.operand_bytes - 2 * 128


def test_what_the_layer_adds_has_a_gradient_of_its_own_where_it_is_scaled_or_cast():
    assert (scan().stream_bytes, scan().cast_stream_bytes) == (2 * 64, (4 + 2) * 64)
    scaled = [dataclasses.replace(op, is_scaled=op.kind == "add") for op in layer().operations]
    assert scan(block=dataclasses.replace(layer(), operations=tuple(scaled))).stream_bytes == 2 * 2 * 64


def test_a_feed_forward_behind_is_gone_by_then():
    half = feed_forward_half(64, 256, gated=True)
    assert scan(block=layer(feed_forward=half)).saved == scan().saved


def states_and_steps(chunks, sequences=1):
    """Return the bytes of all states in fp32, and what stands through all of the scan."""
    states = 4 * chunks * 4 * 32 * 16
    steps, scores, final = 4 * 4 * chunks * 64, 4 * chunks * 64 * 64, 4 * sequences * 4 * 32 * 16
    return states, 2 * steps + scores + final


def around(found, tokens, *, cast=False):
    saved = found.cast if cast else found.saved
    stream = found.cast_stream_bytes if cast else found.stream_bytes
    return tokens * (saved.sequence_bytes + saved.gathered_bytes + saved.tensor_bytes + stream + found.operand_bytes)


@pytest.mark.parametrize("casts", [PLAIN, CAST])
def test_states_and_their_gradients_stand_in_both_formats_at_once(casts):
    # 100 whole chunks, with a state far wider than the scores.
    wide = dataclasses.replace(MAMBA_2, state_size=512)
    found = scan(block=layer(wide))
    states = 4 * 100 * 4 * 32 * 512
    through = 2 * 4 * 4 * 6400 + 4 * 6400 * 64 + 4 * 4 * 32 * 512
    expected = around(found, 6400, cast=bool(casts.all())) + through + 3 * states + states / 64
    assert live_at_scan(found, share(), casts)[0] == expected


def test_few_tokens_leave_many_sums_of_what_heads_share():
    # 132 multiprocessors, three chunks of four heads: each head has its own sum, of 64 x 64 scores a chunk.
    found = scan()
    states, through = states_and_steps(chunks=3)
    steps, shared, scores = 4 * 4 * 192, 4 * 192 * 16, 4 * 192 * 64
    summed = states + 3 * steps + 2 * shared + (4 + 1) * scores
    assert live_at_scan(found, share(length=192), PLAIN)[0] == around(found, 192) + through + summed


def test_a_last_chunk_is_filled_up_and_sequences_have_their_own():
    # 100 tokens are two chunks, whatever the second holds; two sequences are four.
    found = scan()
    one, two = (live_at_scan(found, share(length=100, sequences=count), PLAIN)[0] for count in (1, 2))
    assert two == 2 * one
    assert one - around(found, 100) == live_at_scan(found, share(length=128), PLAIN)[0] - around(found, 128) - (
        2 * 4 * 28 * 16
    )
