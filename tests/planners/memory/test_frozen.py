"""Weights that do not learn: in what width each stack holds them."""

import pytest

from plimsoll.planners.memory.frozen import frozen_note
from plimsoll.planners.questions import Lora
from tests.planners.factories import small_llama
from tests.planners.training_cases import job, memory

# small_llama: 4 layers of 36,864 in matrices and 128 in norms, embedding and head of 64,000 each, a norm of 64.
BASE = 4 * (36_864 + 128) + 2 * 64_000 + 64
# q_proj is 64 x 64: 16 x 64 twice in each of four layers.
ADAPTERS = 4 * 2 * 16 * 64
# Adapters are held in fp32, and autocast keeps a copy of them in 16 bits.
MIXED_BYTES = 4 + 2
QUERIES = ("q_proj",)


def _parameters(framework, **lora):
    asked = {"method": "lora", "lora": Lora(target_modules=QUERIES, **lora), "precision": "bf16-mixed"}
    return memory(framework, model=small_llama(), sequence_length=32, **asked).items.parameters


@pytest.mark.parametrize(
    ("framework", "element_bytes"), [("accelerate", 2), ("ddp", 2), ("composer", 4), ("litgpt", 4)]
)
def test_under_mixed_precision_a_stack_holds_the_base_as_it_loads_it(framework, element_bytes):
    assert _parameters(framework) == element_bytes * BASE + MIXED_BYTES * ADAPTERS


@pytest.mark.parametrize(("dtype", "element_bytes"), [("fp32", 4), ("bf16", 2)])
def test_a_request_may_name_the_base_s_dtype(dtype, element_bytes):
    assert _parameters("accelerate", base_dtype=dtype) == element_bytes * BASE + MIXED_BYTES * ADAPTERS
    assert _parameters("litgpt", base_dtype=dtype) == element_bytes * BASE + MIXED_BYTES * ADAPTERS


def test_a_precision_that_is_not_mixed_decides_by_itself():
    plain = memory(
        "litgpt", model=small_llama(), sequence_length=32, method="lora", lora=Lora(target_modules=QUERIES),
        precision="bf16",
    )  # fmt: skip
    assert plain.items.parameters == 2 * BASE + 2 * ADAPTERS


def test_the_width_is_said_with_its_reason():
    assumed = frozen_note(job("litgpt", method="lora"))
    assert "in fp32" in assumed
    assert "Lightning" in assumed
    asked = frozen_note(job("litgpt", method="lora", lora=Lora(base_dtype="bf16")))
    assert asked == "The frozen base is held in bf16, as asked."
