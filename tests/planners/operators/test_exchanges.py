import numpy as np
import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.operators.exchanges import (
    COMBINE,
    DISPATCH,
    LOW_LATENCY,
    NORMAL,
    NVLINK_TWO_SIDED,
    exchange,
)

H100, GB200 = catalogue().gpu("h100-sxm-80gb"), catalogue().gpu("gb200-nvl-186gb")
# Microseconds for DeepSeek-V3 (hidden 7168, top 8): DeepEP of SGLang's image over one and four nodes of H100, and
# TensorRT-LLM's two-sided exchange among 8 GB200, its preparation counted with the dispatch.
MEASURED = [
    (H100, "sglang", LOW_LATENCY, 1, 8, 14.8, 16.5),
    (H100, "sglang", LOW_LATENCY, 1, 128, 36.7, 67.0),
    (H100, "sglang", LOW_LATENCY, 4, 128, 143.0, 263.3),
    (GB200, "tensorrt-llm", NVLINK_TWO_SIDED, 8, 1024, 75.2 + 19.8, 215.5),
]


@pytest.mark.parametrize(("gpu", "engine", "kind", "span", "tokens", "dispatch", "combine"), MEASURED)
def test_exchanges_take_what_was_measured(gpu, engine, kind, span, tokens, dispatch, combine):
    for step, microseconds in ((DISPATCH, dispatch), (COMBINE, combine)):
        seconds = exchange(gpu, engine, kind, step, span).seconds(tokens, 7168, 8)
        assert seconds * 1e6 == pytest.approx(microseconds, rel=0.1)


def test_of_other_numbers_of_nodes_the_nearest_stands_in():
    assert exchange(H100, "sglang", NORMAL, COMBINE, 6).evidence.variant == "deepep_normal,combine,8"
    assert not exchange(H100, "vllm", NORMAL, COMBINE, 2).evidence.is_own_engine


def test_more_tokens_never_take_less():
    seconds = exchange(H100, "sglang", NORMAL, DISPATCH, 1).seconds(np.exp2(np.linspace(0, 18, 60)), 7168, 8)

    assert (np.diff(seconds) >= 0).all()
