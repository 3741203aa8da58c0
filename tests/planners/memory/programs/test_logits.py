"""The loss of small Llamas: 32 tokens, 1,000 words, a head of 1,000 x 64."""

import numpy as np
import pytest

from plimsoll.planners.families import describe_config
from plimsoll.planners.layouts.candidates import FULL
from plimsoll.planners.memory.programs.logits import forward_logits, returned_logits
from tests.planners.factories import small_llama
from tests.planners.training_cases import asked, events, held, taken

HEAD = 64_000
GEMMA = {
    "model_type": "gemma2", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "final_logit_softcapping": 30.0,
}  # fmt: skip


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
    assert forward_logits(question).max() == np.ceil(question.active.logits).max() + product


@pytest.mark.parametrize(
    ("layout", "precision", "bytes_a_logit"),
    [
        # What the loss keeps in fp32, the copy in fp32 and the logits in 16 bits; then the clone and no longer those.
        ({}, "bf16-mixed", 4 + 4 + 2),
        ({"data_parallel": 2}, "bf16-mixed", 4 + 4 + 4),
        ({"data_parallel": 2, "recompute": FULL}, "bf16-mixed", 4 + 4 + 2),
        ({"data_parallel": 2}, "bf16", 4 + 2 + 2),
        ({}, "bf16", 4 + 2),
        ({"data_parallel": 2, "fused_cross_entropy": True}, "bf16-mixed", 0),
    ],
)
def test_accelerate_s_whole_replicas_return_logits_in_fp32_and_clone_them(layout, precision, bytes_a_logit):
    question = asked("accelerate", model=small_llama(), sequence_length=32, precision=precision, layout=layout)
    assert np.all(returned_logits(question) == bytes_a_logit * 32 * 1000)


def test_other_stacks_return_no_logits():
    assert returned_logits(asked("ddp", model=small_llama(), sequence_length=32, layout={})) == 0


def test_with_liger_s_kernels_a_replica_s_forward_pass_ends_with_what_it_returns():
    # Traced: Phi 3 mini of six layers, 3,176 tokens, 200,064 words, fp16: 7,271.6 MiB of logits, 12 bytes each.
    found = events(
        "accelerate", model=small_llama(), sequence_length=32, precision="fp16-mixed", kernels="fused",
        gpus=2, layout={"data_parallel": 2},
    )  # fmt: skip
    assert held(taken(found, "logits"), "logits") == 12 * 32 * 1000


@pytest.mark.parametrize("is_fused", [False, True])
def test_logits_that_a_fused_loss_caps_in_its_kernel_are_not_kept(is_fused):
    # Traced: Gemma 2 of 19,635 tokens, QLoRA, fused loss: 5.4 GiB in all; capped logits in 16 bits alone would be 9.4.
    gemma = describe_config(GEMMA, name="gemma2")
    question = asked(
        "accelerate", model=gemma, sequence_length=32, layout={"zero_stage": 3, "fused_cross_entropy": is_fused}
    )
    assert (question.active.head.max() >= 2 * 32 * 1000) is not is_fused
