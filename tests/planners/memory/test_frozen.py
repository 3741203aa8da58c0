"""Weights that do not learn: in what width each stack holds them."""

import pytest

from plimsoll.planners.architecture import Part
from plimsoll.planners.families import describe_config
from plimsoll.planners.memory.frozen import base_width, frozen_note, stacked_experts_note
from plimsoll.planners.questions import Lora
from tests.planners.factories import small_llama
from tests.planners.training_cases import asked, events, job, memory, taken

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
    assert all(words in asked for words in ("in bf16", "as asked"))


MIXTRAL = {
    "model_type": "mixtral", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "n_shared_experts": 1, "first_k_dense_replace": 0, "moe_layer_freq": 1,
}  # fmt: skip


def _packed(framework, config):
    """Return the parts of a layer whose matrices are packed in four bits."""
    model = describe_config(config, name="tiny")
    adapted = job(framework, model=model, method="qlora", lora=Lora(target_modules=QUERIES), sequence_length=32)
    width = base_width(adapted)
    return {weight.part for part in adapted.layers for weight in part.frozen if width.quantizes(weight)}


def test_experts_that_transformers_stacks_stay_in_16_bits():
    assert _packed("accelerate", MIXTRAL) == {Part.ATTENTION}


def test_experts_that_are_linear_layers_are_packed():
    # LitGPT has modules of its own, and DeepSeek's first mixture has its code beside its weights.
    assert _packed("litgpt", MIXTRAL) == {Part.ATTENTION, Part.EXPERT}
    assert Part.EXPERT in _packed("accelerate", DEEPSEEK)


def _said_of_experts(framework, method, names):
    model = describe_config(MIXTRAL, name="tiny")
    lora = Lora(target_modules=names)
    return stacked_experts_note(job(framework, model=model, method=method, lora=lora, sequence_length=32))


def test_it_is_said_that_experts_stay_in_16_bits_and_what_of_their_adapters_is_not_counted():
    assert "Experts stay in 16 bits" in _said_of_experts("accelerate", "qlora", QUERIES)
    assert "target_parameters" not in _said_of_experts("accelerate", "qlora", QUERIES)
    assert "target_parameters" in _said_of_experts("accelerate", "lora", ("w1",))
    assert _said_of_experts("accelerate", "lora", QUERIES) is None
    assert _said_of_experts("litgpt", "qlora", ("w1",)) is None


@pytest.mark.parametrize(("framework", "element_bytes"), [("accelerate", 2), ("torchtune", 14)])
def test_torchao_unpacks_four_bits_by_way_of_indices(framework: str, element_bytes: int):
    held = asked(framework, model=small_llama(), method="qlora", precision="bf16").held
    # The feed-forward's matrices of 64 x 128 are the largest.
    assert held.layers[0].dequantized_bytes.max() == element_bytes * 64 * 128


# Qwen 2 57B, of whose 64 experts 7 ranks have 10 each.
QWEN = {
    "model_type": "qwen2_moe", "vocab_size": 151_936, "hidden_size": 3584, "intermediate_size": 18_944,
    "moe_intermediate_size": 2560, "shared_expert_intermediate_size": 20_480, "num_hidden_layers": 6,
    "num_attention_heads": 28, "num_key_value_heads": 4, "num_experts": 64, "num_experts_per_tok": 8,
}  # fmt: skip


def test_frozen_experts_are_gathered_with_the_padding_of_their_shards():
    found = events(
        "accelerate", model=describe_config(QWEN, name="qwen2"), method="lora", precision="tf32",
        lora=Lora(rank=64, target_modules=("q_proj", "v_proj")), layout={"data_parallel": 7, "zero_stage": 3},
    )  # fmt: skip
    # Traced: gate, up and down of 2560 x 3584 in fp32, 70 times, are 7,350 MiB of the layer's 8,306.
    assert taken(found, "gathered", layer=1).change == pytest.approx(8_709_715_504, abs=8)
