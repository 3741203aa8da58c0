import numpy as np
import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.operators.attention import prompt_attention, scored_part, token_attention

H100 = catalogue().gpu("h100-sxm-80gb")


# Parts of the dense peak, 2 b s^2 h d operations, grouped heads, one prompt (the tables' own summary).
@pytest.mark.parametrize(
    ("card", "engine", "head_size", "tokens", "part"),
    [
        ("h100-sxm-80gb", "vllm", 128, 8192, 0.61),
        ("h100-sxm-80gb", "vllm", 64, 4096, 0.40),
        ("b200-sxm-180gb", "sglang", 128, 16384, 0.55),
        ("l40s-48gb", "tensorrt-llm", 128, 4096, 0.37),
    ],
)
def test_prompts_reach_the_measured_part_of_the_peak(card, engine, head_size, tokens, part):
    gpu = catalogue().gpu(card)
    seconds = prompt_attention(gpu, engine, head_size).seconds(1, tokens, 32, 8)

    reached = 2 * tokens**2 * 32 * head_size / seconds / gpu.peak_flops_per_second["bf16"]
    assert reached == pytest.approx(part, abs=0.06)


# Parts of the bandwidth that 32 heads with 8 heads of keys read over 1 GB of keys and values at, as measured.
@pytest.mark.parametrize(
    ("card", "sequences", "positions", "part"),
    [
        ("h100-sxm-80gb", 128, 4096, 0.93),
        ("h100-sxm-80gb", 8, 65536, 0.92),
        ("b200-sxm-180gb", 64, 8192, 0.90),
        ("l40s-48gb", 64, 8192, 0.84),
    ],
)
def test_large_caches_are_read_at_the_measured_part_of_the_bandwidth(card, sequences, positions, part):
    gpu = catalogue().gpu(card)
    seconds = token_attention(gpu, "vllm", 128).seconds(sequences, positions, 32, 8)

    read = 2 * 2 * 128 * sequences * positions * 8
    assert read / seconds / gpu.memory_bytes_per_second == pytest.approx(part, abs=0.06)


def test_a_window_scores_fewer_pairs():
    assert scored_part(4, None) == pytest.approx(10 / 16)
    # Tokens see 1, 2, 2 and 2 positions.
    assert scored_part(4, 2) == pytest.approx(7 / 16)
    whole = prompt_attention(H100, "vllm", 64)
    assert whole.seconds(1, 8192, 32, 8, window=128) < whole.seconds(1, 8192, 32, 8) / 4


def test_longer_caches_and_more_sequences_never_take_less():
    priced = token_attention(H100, "vllm", 128)
    random = np.random.default_rng(3)
    b, s = np.exp2(random.uniform(0, 10, 300)), np.exp2(random.uniform(0, 17, 300))
    before = priced.seconds(b, s, 32, 8)

    assert (priced.seconds(b * 1.5, s, 32, 8) >= before * (1 - 1e-9)).all()
    assert (priced.seconds(b, s * 1.5, 32, 8) >= before * (1 - 1e-9)).all()


def test_other_sizes_of_heads_take_the_nearest():
    assert token_attention(H100, "vllm", 96).evidence.variant == "bfloat16,128"
    assert prompt_attention(H100, "vllm", 80).evidence.variant == "bfloat16,bfloat16,64"
