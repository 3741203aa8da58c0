"""Which configs torchtune's builders make, and what they are told."""

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.questions import Lora
from plimsoll.service.stacks.torchtune.models import (
    adapter_arguments,
    builder_of,
    model_arguments,
    names_adapters,
)
from tests.service.worker.cases import config


@pytest.mark.parametrize(
    ("model", "folder"),
    [
        ("meta-llama/Llama-2-7b-hf", "llama2"),
        ("meta-llama/Meta-Llama-3-8B", "llama3"),
        ("meta-llama/Llama-3.1-8B", "llama3_1"),
        ("meta-llama/Llama-3.2-1B", "llama3_2"),
        ("mistralai/Mistral-7B-v0.1", "mistral"),
        ("Qwen/Qwen2.5-7B", "qwen2"),
        ("google/gemma-2b", "gemma"),
    ],
)
def test_a_model_is_made_by_the_builder_of_its_own_folder(model, folder):
    assert builder_of(catalogue().model(model).config).folder == folder


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "qwen3"},
        {"attention_bias": True},
        {"head_dim": 32},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        {"tie_word_embeddings": True},
    ],
)
def test_a_config_that_no_builder_describes_has_none(changes):
    assert builder_of(config(**changes)) is None


def test_angles_are_made_for_the_config_s_positions_or_a_longer_sequence():
    assert model_arguments(config(), 64)["max_seq_len"] == 128
    assert model_arguments(config(), 256)["max_seq_len"] == 256


@pytest.mark.parametrize(
    ("targets", "named"),
    [
        (("q_proj",), True),
        (("o_proj", "gate_proj", "up_proj", "down_proj"), True),
        (("q_proj", "up_proj"), False),
        (("gate_proj", "up_proj", "down_proj"), False),
        ((Lora.ALL_LINEAR,), True),
    ],
)
def test_adapters_stand_beside_any_of_the_attention_and_all_of_the_feed_forward_or_none(targets, named):
    assert names_adapters(Lora(target_modules=targets)) is named


def test_matrices_have_torchtune_s_names():
    told = adapter_arguments(Lora(rank=8, target_modules=("q_proj", "o_proj")), in_four_bits=True)
    assert told["lora_attn_modules"] == ["q_proj", "output_proj"]
    assert (told["apply_lora_to_mlp"], told["lora_rank"], told["quantize_base"]) == (False, 8, True)
