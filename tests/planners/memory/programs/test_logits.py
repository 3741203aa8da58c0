"""The loss of small Llamas: 32 tokens, 1,000 words, a head of 1,000 x 64."""

import numpy as np
import pytest

from plimsoll.planners.memory.programs.logits import forward_logits
from tests.planners.factories import small_llama
from tests.planners.training_cases import asked

HEAD = 64_000


@pytest.mark.parametrize(
    ("precision", "method", "product"),
    # The product of the head's gradient in fp32; sums in 16 bits lie where products are added, a frozen head has none.
    [("fp32", "full", 4 * HEAD), ("bf16", "full", 0), ("fp32", "lora", 0)],
)
def test_a_fused_loss_in_fp32_makes_the_head_s_gradient_before_it_is_added_up(precision, method, product):
    question = asked(
        "accelerate",
        model=small_llama(),
        gpus=2,
        sequence_length=32,
        precision=precision,
        method=method,
        layout={"data_parallel": 2, "zero_stage": 3, "fused_cross_entropy": True},
    )
    loss = question.job.profile.loss
    plain = np.ceil(question.active.logits * (loss.forward_logits_bytes / loss.logits_bytes))
    assert forward_logits(question).max() == plain.max() + product
