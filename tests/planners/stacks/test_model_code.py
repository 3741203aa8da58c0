"""Which models a stack's own code runs: by what they are made of, read in each stack's source."""

from __future__ import annotations

import functools

import pytest

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.jobs.abilities import why_unsupported
from plimsoll.planners.stacks.model_code import TRAITS, traits_of
from plimsoll.planners.stacks.profile import load_profile, stack_names
from tests.planners.factories import question

BERT, MAMBA, BLOOM = "google-bert/bert-large-uncased", "state-spaces/mamba-2.8b-hf", "bigscience/bloom"
NEMOTRON_H, DEEPSEEK, GPT2 = "nvidia/Nemotron-H-56B-Base-8K", "deepseek-ai/DeepSeek-V3", "openai-community/gpt2"
T5, QWEN3_NEXT, LLAMA = "google-t5/t5-3b", "Qwen/Qwen3-Next-80B-A3B-Instruct", "meta-llama/Llama-2-7b-hf"
LLAMA_31 = "meta-llama/Llama-3.1-8B"


@functools.cache
def model(name: str) -> ModelSpec:
    return describe_config(catalogue().model(name).config, name=name)


@pytest.mark.parametrize(
    ("name", "traits"),
    [
        (LLAMA, set()),
        (LLAMA_31, {"scaled_positions"}),
        (BERT, {"encoder", "learned_positions"}),
        (T5, {"encoder_decoder"}),
        (MAMBA, {"mamba"}),
        (NEMOTRON_H, {"mamba2"}),
        (QWEN3_NEXT, {"delta_rule", "experts"}),
        (DEEPSEEK, {"latent_attention", "wider_keys", "experts"}),
        (
            "deepseek-ai/DeepSeek-V3.2",
            {"latent_attention", "wider_keys", "chosen_tokens", "experts"},
        ),
        ("openai/gpt-oss-20b", {"sliding_window", "sinks", "experts"}),
        ("google/gemma-3-27b-it", {"sliding_window", "vision"}),
        # BLOOM adds ALiBi to its scores, and has neither a rotation nor an embedding of positions.
        (BLOOM, {"position_bias"}),
        (GPT2, {"learned_positions"}),
    ],
)
def test_a_models_traits_are_what_it_is_made_of(name: str, traits: set[str]):
    assert traits_of(model(name)) == traits


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        *((framework, BERT) for framework in ("torchtune", "litgpt", "nanotron")),
        *((framework, MAMBA) for framework in ("torchtune", "litgpt", "megatron-deepspeed", "megatron")),
        *((framework, DEEPSEEK) for framework in ("torchtune", "nanotron", "megatron-deepspeed")),
        *((framework, BLOOM) for framework in ("torchtune", "litgpt", "nanotron")),
        *((framework, GPT2) for framework in ("litgpt", "nanotron")),
    ],
)
def test_a_stack_without_code_for_a_model_does_not_run_it(framework: str, name: str):
    problem = why_unsupported(question(model=model(name)), load_profile(framework))
    assert problem is not None
    assert problem.pointer == "/framework"
    assert f"{framework} has no code for" in problem.detail


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        ("megatron", BERT),  # megatron/core/models/bert
        ("megatron-deepspeed", BERT),  # pretrain_bert.py
        ("megatron-deepspeed", BLOOM),  # trained on a fork of it
        ("megatron", NEMOTRON_H),  # megatron/core/ssm
        ("megatron", QWEN3_NEXT),  # megatron/core/ssm/gated_delta_net
        ("nanotron", MAMBA),  # examples/mamba
        ("litgpt", DEEPSEEK),  # litgpt/model.py, MultiheadLatentAttention
        ("torchtune", GPT2),  # its modules could be put together so; nobody shows it
        *((framework, LLAMA) for framework in stack_names()),
        *(("accelerate", name) for name in (BERT, T5, MAMBA, BLOOM, DEEPSEEK)),
        # Neither reads rope_scaling (rotary_pos_embedding.py there, models/llama.py and qwen.py here), which a model
        # that is trained from its beginning does without.
        *((framework, LLAMA_31) for framework in ("megatron-deepspeed", "nanotron")),
    ],
)
def test_a_stack_with_code_for_a_model_or_that_may_have_it_runs_it(framework: str, name: str):
    profile = load_profile(framework)
    precision = "bf16-mixed" if "bf16-mixed" in profile.states else "bf16"
    assert why_unsupported(question(model=model(name), precision=precision), profile) is None


@pytest.mark.parametrize("framework", stack_names())
def test_what_a_profile_says_of_models_are_traits_and_none_of_them_twice(framework: str):
    code = load_profile(framework).models
    named = [*code.lacks, *code.unknown]
    assert set(named) <= set(TRAITS)
    assert len(named) == len(set(named))
    assert {*code.ring_lacks, *code.exchange_lacks, *code.pipeline_lacks} <= set(TRAITS)
