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


def logits_of(framework, **changes):
    """Return what is held of the logits at each event of them, forwards and backwards, in bytes a logit."""
    degrees = {"data_parallel": 2, "zero_stage": 3}
    found = events(framework, model=small_llama(), gpus=2, sequence_length=32, layout=degrees, **changes)
    named = [event for event in found if event.name.startswith("logits") and event.change]
    return [held(event, "logits") / (32 * 1000) for event in named]


COMPILED = {"kernels": "compiled"}


def test_a_loss_that_is_not_compiled_keeps_the_log_softmax_in_fp32():
    # Logits in 16 bits, their copy and log-softmax in fp32; it and two gradients; the logits' own gradient.
    assert logits_of("fsdp2") == [10, 4, 12, 2, 0]


def test_a_compiled_loss_keeps_the_logits_and_makes_their_gradient_beside_them():
    assert logits_of("fsdp2", **COMPILED) == [2, 4, 2, 0]


def test_torchtitan_s_loss_of_the_winter_of_2024_was_not_compiled():
    assert logits_of("fsdp2", framework_version="2025-01", **COMPILED) == [10, 4, 12, 2, 0]


def test_a_compiled_loss_in_chunks_makes_one_chunk_s_gradient_beside_all_logits():
    # Eight chunks. Behind the first seven eighths of the logits' gradient are left, and two chunks' of 64 features.
    rest = 2 * 7 / 8 + 2 / 8 * 2 * 64 / 1000
    # Not compiled: logits, log-softmax and one chunk's cast; it and two gradients of one chunk.
    assert logits_of("torchtune", precision="bf16") == [2 + 4 + 4 / 8, 4, 4 * (1 + 2 / 8), 2, rest, 0]
    assert logits_of("torchtune", precision="bf16", **COMPILED) == [2, 2 * (1 + 1 / 8), 2, rest, 0]


def test_before_torchtune_0_3_the_loss_had_no_chunks():
    # The logits in fp32, shifted into a copy, and their log-softmax; that and two gradients.
    assert logits_of("torchtune", precision="bf16", framework_version="0.2") == [12, 4, 12, 2, 0]


def test_over_ranks_that_divide_the_vocabulary_a_compiled_loss_is_planned_as_any_other():
    degrees = {"data_parallel": 2, "tensor_parallel": 2, "zero_stage": 3, "sequence_parallel": True}
    plain, compiled = (
        asked("fsdp2", model=small_llama(), sequence_length=32, layout=degrees, kernels=kernels)
        for kernels in ("eager", "compiled")
    )
    assert forward_logits(plain) == forward_logits(compiled) > 0


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
