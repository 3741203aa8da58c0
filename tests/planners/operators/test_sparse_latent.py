import numpy as np
import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.operators.sparse_latent import DEEPSEEK, GLM, sparse_block

H200 = catalogue().gpu("h200-sxm-141gb")


# Microseconds of DeepSeek-V3.2's block with 16 heads, weights and cache in fp8, vLLM 0.24 on one H200.
@pytest.mark.parametrize(
    ("sequences", "cached", "microseconds"),
    [(1, 8192, 167.9), (16, 1024, 194.8), (16, 65_536, 241.4), (256, 8192, 545.6)],
)
def test_a_block_takes_what_was_measured(sequences, cached, microseconds):
    block = sparse_block(H200, "vllm", DEEPSEEK, "fp8_block", "fp8")

    assert block.seconds(sequences, cached, 16) * 1e6 == pytest.approx(microseconds, rel=0.05)


def test_a_layer_that_uses_an_earlier_choice_again_spares_the_indexer():
    indexed, skipped = (
        sparse_block(H200, "sglang", GLM, "fp8_block", "fp8", indexes=indexes) for indexes in (True, False)
    )

    assert skipped.evidence.variant == "glm_5,fp8,fp8_block,skipped"
    assert skipped.seconds(16, 65_536, 16) < 0.6 * indexed.seconds(16, 65_536, 16)


def test_fp8_per_tensor_has_fp8_by_blocks_stand_in():
    assert sparse_block(H200, "vllm", GLM, "fp8", "fp8").evidence.variant == "glm_5,fp8,fp8_block,indexed"


def test_more_sequences_tokens_and_heads_never_take_less():
    block = sparse_block(H200, "tensorrt-llm", DEEPSEEK, "fp8_block", "bfloat16")
    random = np.random.default_rng(4)
    sizes = [np.exp2(random.uniform(0, most, 200)) for most in (8, 15, 7)]
    before = block.seconds(*sizes)

    for axis in range(3):
        grown = [size * 1.6 if each == axis else size for each, size in enumerate(sizes)]
        assert (block.seconds(*grown) >= before * (1 - 1e-9)).all()


def test_weights_and_picked_entries_are_read_once():
    # 16 heads: 6144 x (1536 + 576) + 16 x (1536 x 192 + 128 x 6144) = 30.3 M weights; 16 x 2,048 entries of 576 bytes.
    least = (30.3e6 + 16 * 2048 * 576) / 4.8e12

    assert sparse_block(H200, "vllm", DEEPSEEK, "fp8_block", "fp8").seconds(16, 65_536, 16) > least
