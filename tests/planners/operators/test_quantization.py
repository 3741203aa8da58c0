import numpy as np
import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.operators.quantization import DYNAMIC, STATIC, quantization

H100 = catalogue().gpu("h100-sxm-80gb")


# vLLM 0.24 on one H100, rows of 4,096 features: microseconds to quantize, and to find the scale besides.
@pytest.mark.parametrize(("rows", "quantized", "scale"), [(1, 2.13, 0.61), (64, 2.27, 0.63), (1024, 3.96, 2.20)])
def test_quantization_takes_what_was_measured(rows, quantized, scale):
    assert quantization(H100, "vllm", STATIC).seconds(rows, 4096) * 1e6 == pytest.approx(quantized, rel=0.12)
    assert quantization(H100, "vllm", DYNAMIC).seconds(rows, 4096) * 1e6 == pytest.approx(quantized + scale, rel=0.12)


def test_activations_are_read_and_written_at_most_at_the_cards_bandwidth():
    # 32,768 x 8,192 values, 3 bytes each, at 3.35 TB/s.
    assert quantization(H100, "vllm").seconds(32_768, 8192) >= 32_768 * 8192 * 3 / 3.35e12


def test_more_rows_never_take_less():
    assert (np.diff(quantization(H100, "sglang").seconds(np.exp2(np.linspace(0, 16, 60)), 7168)) >= 0).all()
