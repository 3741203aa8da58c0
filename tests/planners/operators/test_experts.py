import numpy as np
import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.operators.experts import experts

H100 = catalogue().gpu("h100-sxm-80gb")
TOKENS = np.array([1, 2, 4, 8, 16, 32, 64])
# Qwen3-30B-A3B's experts (2,048 x 768, 8 of 128) on one H100, measured by TensorRT-LLM in fp8 and by vLLM in fp8 by
# blocks, each choice another expert until all are touched.
MEASURED = [
    ("tensorrt-llm", "fp8", [39, 55, 80, 132, 232, 232, 236]),
    ("vllm", "fp8_block", [43, 63, 83, 140, 240, 245, 249]),
]


@pytest.mark.parametrize(("engine", "number_format", "microseconds"), MEASURED)
def test_time_follows_the_experts_that_are_touched(engine, number_format, microseconds):
    rows = TOKENS * 8
    seconds = experts(H100, engine, number_format).seconds(np.minimum(rows, 128), rows, 2048, 768)

    assert np.abs(seconds * 1e6 / microseconds - 1).max() < 0.25


def test_more_experts_and_more_rows_never_take_less():
    priced = experts(catalogue().gpu("b200-sxm-180gb"), "vllm", "nvfp4")
    random = np.random.default_rng(5)
    e, r = np.exp2(random.uniform(0, 9, 300)), np.exp2(random.uniform(9, 18, 300))
    before = priced.seconds(e, r, 4096, 1536)

    assert (priced.seconds(e, r * 1.5, 4096, 1536) >= before * (1 - 1e-9)).all()


def test_plain_experts_have_two_matrices():
    plain, gated = (experts(H100, "tensorrt-llm", "bfloat16", is_gated=is_gated) for is_gated in (False, True))

    assert plain.evidence.variant == "bfloat16,plain,cutlass"
    assert plain.seconds(128, 1024, 4096, 1536) < gated.seconds(128, 1024, 4096, 1536)


# vLLM 0.12 decoded Qwen3-235B-A22B-FP8 on H200 in 51 to 55 ms a token over 2 ranks and 34 to 37 over 4, with 4 requests
# as with 20; about 10 ms of it are attention, its products and collectives. Touched experts alone take 10 to 25.
@pytest.mark.parametrize(("ranks", "milliseconds"), [(2, 43), (4, 26)])
def test_tiles_of_all_experts_cost_the_same_whatever_the_batch(ranks, milliseconds):
    priced = experts(catalogue().gpu("h200-sxm-141gb"), "vllm", "fp8_block")
    # 4 and 20 tokens of 8 experts each: of 128 about 29 and 92 are touched, drawn evenly.
    walked = 94e3 * priced.walked_seconds(
        np.array([29, 92]), np.array([32, 160]), 4096, 1536 / ranks,
        experts=128, tile_rows=128, memory_bytes_per_second=4.8e12,
    )  # fmt: skip

    assert np.abs(walked / milliseconds - 1).max() < 0.1
    assert walked[1] < 1.12 * walked[0]


def test_a_tile_without_rows_reads_the_first_experts_weights_from_the_cache():
    priced = experts(catalogue().gpu("h200-sxm-141gb"), "vllm", "fp8_block")
    few, all_of_them = (
        float(priced.walked_seconds(n, 64, 4096, 768, experts=128, tile_rows=128, memory_bytes_per_second=4.8e12))
        for n in (32, 128)
    )
    # 96 tiles of 3 x 4096 x 768 bytes of weights and as many of rows at 7.1 TB/s: 255 us.
    cached = 96 * 6 * 4096 * 768 / (0.7 * 5120 * 1.98e9)
    spared = float(priced.seconds(128, 64, 4096, 768)) - float(priced.seconds(32, 64, 4096, 768))
    assert all_of_them - few == pytest.approx(spared - cached)


def test_an_unknown_format_is_an_error():
    with pytest.raises(KeyError):
        experts(H100, "vllm", "int3")
