import numpy as np
import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.operators.absorbed import absorbed_products

H100 = catalogue().gpu("h100-sxm-80gb")


# Microseconds of the products before and after attention, 16 heads in bf16, vLLM 0.24 on one H100.
@pytest.mark.parametrize(("tokens", "before", "after"), [(1, 4.12, 4.65), (64, 4.38, 4.80), (1024, 9.82, 8.04)])
def test_both_products_take_what_each_was_measured_to(tokens, before, after):
    assert absorbed_products(H100, "vllm").seconds(tokens, 16) * 1e6 == pytest.approx(before + after, rel=0.05)


def test_their_weights_are_read_once():
    # 128 heads x 128 x 512 in bf16, twice: 33.6 MB at 3.35 TB/s.
    least = 128 * 128 * 512 * 2 * 2 / 3.35e12
    assert absorbed_products(H100, "vllm").seconds(1, 128) > least


def test_more_tokens_and_heads_never_take_less():
    priced = absorbed_products(H100, "sglang")
    tokens, heads = np.exp2(np.linspace(0, 15, 40))[:, None], np.arange(1, 129)

    assert (np.diff(priced.seconds(tokens, heads), axis=0) >= -1e-12).all()
    assert (np.diff(priced.seconds(tokens, heads), axis=1) >= -1e-12).all()
