import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.operators.recurrent import GATED_DELTA, PROMPT, TOKEN, recurrence

H100 = catalogue().gpu("h100-sxm-80gb")


# Convolution and scan of Qwen3.5's 16 key and 32 value heads in vLLM, microseconds, as measured.
@pytest.mark.parametrize(
    ("sequences", "tokens", "microseconds"), [(1, 256, 6.0 + 21.2), (1, 4096, 63.6 + 199.6), (4, 4096, 239.8 + 209.1)]
)
def test_prompts_take_what_was_measured(sequences, tokens, microseconds):
    seconds = recurrence(H100, "vllm", GATED_DELTA, PROMPT).seconds(sequences, tokens, 32)

    assert seconds * 1e6 == pytest.approx(microseconds, rel=0.3)


def test_a_token_reads_and_writes_the_state():
    seconds = recurrence(H100, "vllm", GATED_DELTA, TOKEN).seconds(256, 1, 32)

    assert seconds * 1e6 == pytest.approx(363.8 + 10.7, rel=0.25)


def test_a_kind_that_nobody_measured_is_none():
    assert recurrence(H100, "vllm", "state_space", PROMPT) is None
