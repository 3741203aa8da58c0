"""What an optimizer's step makes, and where FSDP2's states lie."""

from dataclasses import replace

import pytest

from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.memory.peak import memory_of
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import hardware, question, small_llama

EVERY_STATE = 2
# Embedding and head 64,000 each, the last norm 64; a layer: q and o 4,096, k and v 2,048, three of 8,192, norms 128.
LAYER = 2 * 4096 + 2 * 2048 + 3 * 8192 + 128
PARAMETERS = 2 * 64_000 + 64 + 4 * LAYER
TENSORS = 3 + 4 * 9


def _memory(framework, optimizer="adamw", *, gpus=1, vocab_size=1000, gradient_dtype=None, **row):
    asked = question(
        model=small_llama(vocab_size=vocab_size),
        gpus=gpus,
        sequence_length=1,
        global_batch_size=gpus,
        optimizer=optimizer,
        precision="bf16-mixed",
        gradient_dtype=gradient_dtype,
    )
    job = training_job(asked, load_profile(framework))
    rows = candidates_from_rows([{"data_parallel": gpus, "shard_group": gpus, **row}])
    return memory_of(rows, 0, job, hardware(gpus))


def test_adafactor_makes_two_fp32_copies_of_the_largest_matrix():
    # The embedding is the largest; of a thousand words more it has 64,000 elements, and embedding and head have a
    # thousand rows of fp32 factors each.
    few, many = (_memory("ddp", "adafactor", vocab_size=size, zero_stage=0) for size in (1000, 2000))
    assert few.phase == many.phase == "optimizer step"
    assert many.items.optimizer - few.items.optimizer == 8 * 64_000 + 2 * 4 * 1000


def test_muon_makes_half_precision_products_of_the_largest_matrix_of_a_layer():
    # Events: one fp32 of matrices, two of the rest; 8 bytes of 128 x 64 elements and 4 of 64 x 64 beside them.
    matrices, rest = 4 * (LAYER - 128), PARAMETERS - 4 * (LAYER - 128)
    memory = _memory("ddp", "muon", zero_stage=0)
    states = 4 * matrices + 8 * rest
    assert memory.phase == "optimizer step"
    assert memory.items.optimizer == pytest.approx(states + 8 * 8192 + 4 * 64 * 64, abs=4 * TENSORS)


def test_composer_updates_one_parameter_after_another():
    # DecoupledAdamW: two fp32 moments of every parameter, and none of torch's temporaries of all of them.
    memory = _memory("composer", zero_stage=0)
    assert memory.items.optimizer == pytest.approx(8 * PARAMETERS, abs=4 * TENSORS)


def test_gradients_in_16_bits_are_copied_to_fp32_for_the_update_of_a_rank_s_part():
    # Four ranks: a quarter of 4 bytes of every parameter beside a quarter of 12 (Megatron-LM, distrib_optimizer.py).
    narrow, wide = (
        _memory("megatron-bridge", gpus=4, zero_stage=1, data_parallel=4, gradient_dtype=dtype)
        for dtype in ("bf16", "fp32")
    )
    assert narrow.phase == "optimizer step"
    padded = PARAMETERS + 2 * 24 * 64  # the vocabulary to 1,024
    assert narrow.items.optimizer == pytest.approx(16 * padded / 4, rel=0.001)
    assert wide.items.optimizer == pytest.approx(12 * padded / 4, rel=0.001)


def test_the_trainer_keeps_the_embedding_s_states_in_fp32():
    # Two states of 64,000 elements: 4 bytes in place of one and a 64th.
    asked = question(model=small_llama(), gpus=1, sequence_length=1, global_batch_size=1, optimizer="adamw-8bit")
    profile, rows = load_profile("accelerate"), candidates_from_rows([{"zero_stage": 0}])
    kept, without = (
        memory_of(rows, 0, training_job(asked, each), hardware(1)).items.optimizer
        for each in (profile, replace(profile, widens_embedding_states=False))
    )
    assert kept - without == pytest.approx(2 * 64_000 * (4 - 1 - 4 / 256), abs=1)


def test_fsdp2_puts_parameters_gradients_and_states_on_the_host():
    memory = _memory("fsdp2", gpus=2, zero_stage=3, offload=EVERY_STATE)
    assert memory.items.parameters == memory.items.optimizer == 0
    # fp32 parameter, gradient and two events of half of everything, and a step counter for each of 39 tensors.
    assert memory.host_bytes >= 16 * PARAMETERS // 2 + 4 * TENSORS
