"""Tests of the budget's terms."""

from __future__ import annotations

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.engines.budgets import stage_budgets
from plimsoll.planners.serving.engines.vllm.budget import requested_bytes
from plimsoll.planners.serving.memory.profile_run import (
    activation_bytes,
    captured_sizes,
    cuda_graph_bytes,
    expert_layer_bytes,
    expert_workspace_bytes,
    latent_context_bytes,
    latent_workspace_tokens,
    non_torch_bytes,
    sampler_bytes,
    unpacked_elements,
)
from plimsoll.planners.serving.releases.profile import engine_profile
from plimsoll.planners.serving.settings.settings import resolve_settings
from plimsoll.planners.serving.weights.stages import replica_stages
from tests.planners.serving.factories import H100, MIXTRAL, model, question


def budget_of(**changes):
    asked = question(**changes)
    settings = resolve_settings(asked)
    (stage,) = replica_stages(asked.model, settings.weights, Degrees(), engine="vllm")
    (budget,) = stage_budgets(asked.model, settings, [stage], Degrees(), total_bytes=H100.memory_bytes)
    return budget


def activations(*, has_head=True, pipeline_parallel=1, spec=None, **changes):
    asked = question(spec, **changes)
    return activation_bytes(
        asked.model,
        resolve_settings(asked),
        Degrees(pipeline_parallel=pipeline_parallel),
        has_head=has_head,
    )


def test_the_samplers_logits_set_the_peak():
    # 1,024 x 128,256 logits x (12 + 2) B = 1.712 GiB; 132 rows of fp32 0.063; 1.25 x 8,192 x 4,096 x 2 B = 0.078;
    # cuBLAS's 32 MiB 0.031. Logged: 1.89.
    assert activations() / GIB == pytest.approx(1.885, abs=0.001)


def test_a_quarter_of_the_sequences_takes_a_quarter_of_the_logits():
    # 256 sequences: 0.428 + 0.063 + 0.078 + 0.031 GiB; but a layer of 8,192 tokens takes 0.656 + 0.25 + 0.031.
    assert activations(max_num_seqs=256) / GIB == pytest.approx(0.9375, abs=0.001)
    # At 2,048 tokens the layer takes a quarter, and the logits rule: 0.428 + 0.063 + 0.020 + 0.031.
    small = activations(max_num_seqs=256, max_num_batched_tokens=2048) / GIB
    assert small == pytest.approx(0.542, abs=0.001)


@pytest.mark.parametrize(("rows", "bytes_a_token"), [(64, 64 * 18), (132, 132 * 18), (133, 133 * 14 + 132 * 4)])
def test_the_sampler_keeps_a_row_for_each_program_and_no_more_than_it_samples(rows, bytes_a_token):
    asked = question(max_num_seqs=rows, max_num_batched_tokens=8192)
    assert sampler_bytes(asked.model, resolve_settings(asked)) == 128256 * bytes_a_token


def test_only_the_last_stage_samples():
    # Logged for Llama-3.1-8B on two stages: 1.10 GiB on the first, 2.01 on the last.
    assert activations(has_head=False, pipeline_parallel=2) / GIB == pytest.approx(1.10, abs=0.05)
    assert activations(has_head=True, pipeline_parallel=2) / GIB == pytest.approx(2.01, abs=0.01)


def test_the_context_does_not_change_the_profile():
    assert activations(max_model_len=2048) == activations(max_model_len=131072)


@pytest.mark.parametrize(("sequences", "sizes"), [(1, 2), (2, 3), (4, 4), (8, 5), (128, 35), (256, 51), (1024, 51)])
def test_captured_sizes_reach_twice_the_sequences(sequences, sizes):
    # 1, 2, 4, then 8, 16, ... 256 (32 sizes) and 272, ... 512 (16 sizes).
    assert captured_sizes(sequences) == sizes


def test_graphs_grow_with_the_layers_and_the_sizes():
    # 0.311 + 32 x 0.01736 = 0.8665 GiB for 51 sizes.
    assert cuda_graph_bytes(32, 1024) / GIB == pytest.approx(0.8665, abs=0.0001)
    assert cuda_graph_bytes(32, 4) / GIB == pytest.approx(0.8665 * 4 / 51, abs=0.0001)


def test_communicators_take_two_gib_with_tensor_parallelism():
    profile = engine_profile("vllm", "0.19")
    sizes = [
        non_torch_bytes(profile, Degrees(tensor_parallel=tensor, pipeline_parallel=pipeline)) / GIB
        for tensor, pipeline in ((1, 1), (1, 2), (2, 1), (2, 2))
    ]
    assert sizes == pytest.approx([0.25, 0.07, 2.10, 2.10])


def test_the_engine_claims_a_share_of_the_whole_card():
    assert requested_bytes(1000, 0.9) == 900


def test_what_is_left_for_the_cache_is_the_claim_less_the_terms():
    budget = budget_of(gpu_memory_utilization=0.95)
    terms = budget.weights_bytes + budget.activations_bytes + budget.non_torch_bytes
    assert budget.available_bytes == requested_bytes(H100.memory_bytes, 0.95) - terms


def test_graphs_come_out_of_the_claim_from_0_21():
    before = budget_of(engine_version="0.20")
    after = budget_of(engine_version="0.21")
    assert before.available_bytes - after.available_bytes == after.cuda_graphs_bytes


def test_the_band_encloses_the_estimate_and_is_never_negative():
    budget = budget_of()
    assert budget.available_low_bytes < budget.available_bytes < budget.available_high_bytes
    empty = budget_of(gpu_memory_utilization=0.01)
    assert (empty.available_low_bytes, empty.available_bytes) == (0, 0)


def test_a_model_in_fp32_gathers_wider_logits():
    # Logged for Llama-3.1-8B in float32: 2.21 GiB.
    assert activations(weights="fp32", spec=model()) / GIB == pytest.approx(2.21, abs=0.01)


@pytest.mark.parametrize(
    ("name", "gib"),
    [("Qwen/Qwen3-30B-A3B", 2.68), ("Qwen/Qwen1.5-MoE-A2.7B", 2.47), ("deepseek-ai/DeepSeek-V2-Lite", 1.93)],
)
def test_a_mixtures_logged_peak_holds_its_experts_buffers(name, gib):
    spec = describe_config(catalogue().model(name).config, name=name)
    assert activations(spec=spec) / GIB == pytest.approx(gib, abs=0.011)


def test_experts_buffers_hold_a_row_for_each_expert_of_each_token():
    # 8,192 tokens x 2 experts x (14,336 + 28,672) x 2 bytes; on 8 ranks (4,096 + 4,096).
    asked = question(model(MIXTRAL))
    settings = resolve_settings(asked)
    assert expert_workspace_bytes(asked.model, settings, Degrees()) == 8192 * 2 * (14336 + 28672) * 2
    assert expert_workspace_bytes(asked.model, settings, Degrees(tensor_parallel=8)) == 8192 * 2 * 8192 * 2
    gathered = expert_workspace_bytes(asked.model, settings, Degrees(attention_data_parallel=4, expert_parallel=4))
    assert gathered == 4 * 8192 * 2 * (14336 + 28672) * 2


def test_the_kernels_for_mxfp4_keep_no_buffers():
    asked = question(model(MIXTRAL), weights="mxfp4")
    assert expert_workspace_bytes(asked.model, resolve_settings(asked), Degrees()) == 0


def test_experts_in_8_bits_copy_what_they_multiply():
    # Mixtral, 8,192 tokens of 2 experts each: an output of 8,192 x 4,096 x 2 B = 0.0625 GiB; in 8 bits a byte each of
    # the input, 0.03125, and of 16,384 rows of 14,336 gates times ups, 0.21875; half of these rows' width on 2 ranks.
    spec = model(MIXTRAL)
    wanted = [
        ("bf16", Degrees(), 0.0625),
        ("fp8", Degrees(), 0.3125),
        ("fp8", Degrees(tensor_parallel=2), 0.203125),
        ("int4", Degrees(), 0.0625),
    ]
    for weights, degrees, gib in wanted:
        assert expert_layer_bytes(spec, resolve_settings(question(spec, weights=weights)), degrees) / GIB == gib


def test_a_dense_model_has_no_experts_to_make_anything_for():
    assert expert_layer_bytes(model(), resolve_settings(question()), Degrees()) == 0


@pytest.mark.parametrize(
    ("max_model_len", "max_num_seqs", "tokens"),
    [
        (1000, 16, 8000),  # eight requests at their longest
        (100, 16, 1024),  # four blocks of each of 16 requests
        (8191, 16, 65528),
        (8193, 16, 65536),  # no more than 64k
        (8193, 8192, 131072),  # but a block for every request
    ],
)
def test_a_context_is_expanded_in_chunks(max_model_len, max_num_seqs, tokens):
    assert latent_workspace_tokens(max_model_len=max_model_len, max_num_seqs=max_num_seqs, block_size=16) == tokens


def test_all_heads_of_an_expanded_context_outweigh_the_logits():
    # DeepSeek-V3 in 8 bits, 8,192 positions: 65,536 tokens x 128 heads x (128 + 128) features x 2 B = 4 GiB, an eighth
    # of it on eight ranks; an engine that does not profile makes none.
    entry = catalogue().model("deepseek-ai/DeepSeek-V3")
    spec = describe_config(entry.config, name=entry.id)
    settings = resolve_settings(question(spec, weights="fp8", max_model_len=8192))
    assert latent_context_bytes(spec, settings, Degrees()) / GIB == 4
    assert latent_context_bytes(spec, settings, Degrees(tensor_parallel=8)) / GIB == 0.5
    other = resolve_settings(question(spec, weights="fp8", max_model_len=8192, engine="sglang", engine_version=None))
    assert latent_context_bytes(spec, other, Degrees()) == 0


def test_nf4_unpacks_a_matrix_or_all_experts_of_a_layer():
    # Llama-3.1-8B's widest matrix has 14,336 x 4,096 elements; Mixtral's eight experts three of them each.
    matrix = 14336 * 4096
    dense = unpacked_elements(model(), resolve_settings(question(weights="nf4")), Degrees(tensor_parallel=2))
    assert (dense.matrix, dense.experts) == (matrix // 2, 0)
    settings = resolve_settings(question(model(MIXTRAL), weights="nf4"))
    assert unpacked_elements(model(MIXTRAL), settings, Degrees(tensor_parallel=2)).experts == 8 * 3 * matrix // 2
    others = unpacked_elements(model(MIXTRAL), resolve_settings(question(model(MIXTRAL))), Degrees())
    assert (others.matrix, others.experts) == (0, 0)
