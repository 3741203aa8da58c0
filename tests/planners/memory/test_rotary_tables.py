"""Angles of positions: one table a model, or one a layer of latent attention with 64 features that turn."""

import numpy as np

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.memory.rotary_tables import has_tables_of_layers, rotary_table_bytes, tables_of_layers
from tests.planners.factories import small_llama
from tests.planners.training_cases import asked

LITE = describe_config(dict(catalogue().model("deepseek-ai/DeepSeek-V2-Lite").config), name="lite")
LENGTH = 4096


def job(framework, model=LITE):
    return asked(framework, model=model, sequence_length=LENGTH).job


def test_megatron_s_latent_attention_has_angles_in_fp32_and_cosines_and_sines_in_16_bits_for_each_layer():
    latent = job("megatron")
    assert has_tables_of_layers(latent)
    assert rotary_table_bytes(latent) == 0
    assert tables_of_layers(latent, np.asarray(3)) == 3 * (4 + 2 * 2) * 64 * LENGTH


def test_angles_of_32_layers_are_remembered():
    assert tables_of_layers(job("megatron"), np.asarray(40)) == (32 * 4 + 40 * 2 * 2) * 64 * LENGTH


def test_other_attention_and_other_stacks_have_one_table():
    for other in (job("megatron", small_llama()), job("fsdp2")):
        assert not has_tables_of_layers(other)
        assert rotary_table_bytes(other) > 0
