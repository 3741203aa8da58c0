"""Tests of the roofline."""

from __future__ import annotations

import dataclasses

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.replica import plan_replica, work_of
from plimsoll.planners.serving.settings.settings import resolve_settings
from plimsoll.planners.serving.times.batching import Deployment
from plimsoll.planners.serving.times.efficiency import efficiency
from plimsoll.planners.serving.times.latency import ReplicaWork, replica_work
from plimsoll.planners.serving.times.pace import decode_terms, pace_of, pipe_part, prefill_terms
from plimsoll.planners.serving.traffic import Traffic
from tests.planners.serving.factories import GPT2, LLAMA_7B, MIXTRAL, hardware, hybrid, model, question


def work_at(*, tensor_parallel=1, pipeline_parallel=1, spec=None, **changes) -> ReplicaWork:
    asked = question(spec, gpus=tensor_parallel * pipeline_parallel, **changes)
    settings = resolve_settings(asked)
    replica = plan_replica(
        asked, settings, Degrees(tensor_parallel=tensor_parallel, pipeline_parallel=pipeline_parallel)
    )
    return work_of(asked, settings, replica)


def step_of(work: ReplicaWork, batch: float, *, context: int = 1000) -> float:
    """Return a token's time without others' prompts: answers are long and the prompt is one token."""
    return pace_of(work, Traffic(input_tokens=1, output_tokens=2 * context)).token_seconds(batch)


def test_a_generated_token_costs_two_operations_a_parameter():
    # 32 x (4 x 4,096^2 + 3 x 4,096 x 11,008) + 32,000 x 4,096 = 6,607,077,376 multiplied parameters;
    # with the embedding's rows, which are looked up, 2 x N = 13.48e9.
    spec = model(LLAMA_7B)
    flops = work_at(spec=spec, max_model_len=4096).decode_flops(0)
    assert flops == 2 * 6_607_077_376
    assert flops == pytest.approx(2 * spec.parameters, rel=0.02)


def test_attention_adds_four_operations_a_head_feature_and_position():
    # 4 x 32 layers x 32 heads x 128 x 1,000 positions.
    work = work_at(spec=model(LLAMA_7B), max_model_len=4096)
    assert work.decode_flops(1000) - work.decode_flops(0) == 4 * 32 * 32 * 128 * 1000


def test_a_window_bounds_what_is_read_and_computed():
    work = work_at(spec=hybrid(full=1, sliding=1, window=100))
    full, sliding = work.cached
    assert (full.attended(1000), sliding.attended(1000), sliding.attended(50)) == (1000, 100, 50)


def test_a_prompt_needs_logits_of_its_last_token_only():
    # Two tokens attend to 1.5 positions on average.
    work = work_at()
    per_position = sum(layers.attention_flops_per_position for layers in work.cached)
    expected = 2 * work.layer_flops_per_token + 2 * 1.5 * per_position + work.head_flops_per_token
    assert work.prefill_flops(2) == expected


def test_one_requests_step_reads_the_weights_and_its_cache():
    # 1,001 tokens x 131,072 B at 3.35 TB/s; one request is never delayed by another's prompt.
    work = work_at()
    terms = decode_terms(work, 1, Traffic(input_tokens=1, output_tokens=2000))
    assert terms["dense_weights"] == work.read_bytes / 3.35e12
    assert terms["cache"] == pytest.approx(1001 * 131_072 / 3.35e12)
    # Each of the 32 layers has 14 operations: two norms and adds, seven products, rotation, attention, activation.
    assert (terms["operations"], terms["parallel_layers"], terms["expert_weights"]) == (32 * 14, 0, 0)
    assert (terms["others_prefill_dense"], terms["blackwell_operations"], terms["requests"]) == (0, 0, 1)


def test_kernels_of_blackwell_have_a_weight_of_their_own():
    gpu = catalogue().gpu("b200-sxm-180gb")
    terms = decode_terms(work_at(hardware=hardware(1, gpu=gpu)), 1, Traffic(input_tokens=1, output_tokens=2))
    assert (terms["operations"], terms["blackwell_operations"]) == (0, 32 * 14)


def test_products_of_eight_bits_quantize_their_inputs_first():
    # Seven products a layer: queries, keys, values, output, gate, up and down.
    terms = decode_terms(work_at(weights="fp8"), 1, Traffic(input_tokens=1, output_tokens=2))
    assert terms["quantized_matmuls"] == 32 * 7


def test_kernels_of_eight_bits_lay_a_tile_out_for_every_expert():
    # 32 layers x 8 experts x 128 rows of 6 x 4,096 + 10 x 14,336 B around their products.
    work = work_at(spec=model(MIXTRAL), weights="fp8")
    assert work.tile_bytes == 32 * 8 * 128 * (6 * 4096 + 10 * 14336)
    assert work.touched_part(1) == 1


@pytest.mark.parametrize("changes", [{"weights": "bf16"}, {"weights": "fp8", "engine": "sglang"}])
def test_other_kernels_take_as_many_rows_as_come(changes):
    asked = {"spec": model(MIXTRAL), "tensor_parallel": 2, **changes}
    if "engine" in changes:
        asked["engine_version"] = None
    work = work_at(**asked)
    assert work.tile_bytes == 0
    assert work.touched_part(1) == pytest.approx(2 / 8)


def test_tiles_are_divided_as_the_experts_are():
    # Two ranks divide each expert: half the inner features of all 8.
    work = work_at(spec=model(MIXTRAL), weights="fp8", tensor_parallel=2)
    assert work.tile_bytes == 32 * 8 * 128 * (6 * 4096 + 10 * 14336 / 2)


def test_a_token_takes_its_terms_weighed():
    work = work_at()
    weights = efficiency("vllm").decode
    terms = decode_terms(work, 8, Traffic(input_tokens=512, output_tokens=128))
    assert set(terms) == set(weights)
    expected = sum(weights[name] * term for name, term in terms.items())
    assert pace_of(work, Traffic(input_tokens=512, output_tokens=128)).token_seconds(8) == pytest.approx(expected)


def test_a_step_reads_the_experts_its_tokens_are_sent_to():
    # Mixtral sends each token to 2 of 8: one touches 1/4, two 1 - (3/4)^2 = 7/16.
    work = work_at(spec=model(MIXTRAL), tensor_parallel=2)
    read = [work.weight_bytes_read(tokens) - work.read_bytes for tokens in (1, 2, 10**6)]
    assert read == pytest.approx([work.expert_bytes / 4, work.expert_bytes * 7 / 16, work.expert_bytes])


def test_attention_ranks_gather_tokens_for_the_experts_alone():
    # 4 ranks of one tensor each: 2 x 3/4 of 4 ranks' tokens through 32 layers; no other all-reduce.
    asked = question(model(MIXTRAL), gpus=4, weights="fp8")
    settings = resolve_settings(asked)
    replica = plan_replica(asked, settings, Degrees(attention_data_parallel=4, expert_parallel=4))
    assert work_of(asked, settings, replica).all_reduce_bytes_per_token == 6 * 32 * 4096 * 2


def test_a_recurrent_state_is_read_and_written():
    work = work_at()
    layers = dataclasses.replace(work.cached[0], bytes_per_token=0, state_bytes=1000)
    assert layers.read_bytes(10**6) == 2000


def test_a_large_batch_is_bound_by_the_matrix_units():
    work = work_at()
    assert step_of(work, 10**5) > 10**5 * work.decode_flops(0) / work.peak_flops_per_second


def test_tensor_parallelism_halves_the_reading_and_adds_all_reduces():
    one, two = work_at(), work_at(tensor_parallel=2)
    assert two.read_bytes == pytest.approx(one.read_bytes / 2, rel=0.001)
    # A ring of 2 moves 2 x 1/2 of 2 x 32 layers x 4,096 x 2 B a token.
    assert (one.all_reduce_bytes_per_token, two.all_reduce_bytes_per_token) == (0, 2 * 32 * 4096 * 2)


def test_a_pipeline_passes_its_hidden_states_on():
    one, two = work_at(), work_at(pipeline_parallel=2)
    assert step_of(two, 1) > step_of(one, 1)
    # Half the batch a stage: two stages serve 64 requests' cache as fast as one serves 32.
    assert step_of(two, 64, context=4096) < step_of(one, 64, context=4096)


@pytest.mark.parametrize(
    ("stages", "following", "part"),
    # Each of 5 chunks through 4 stages takes 8 stage times / 5; a stage time is a quarter of the whole passing.
    [(4, 0.2, 1.0), (4, 1, 1.0), (4, 5, 8 / 5 / 4), (1, 0.2, 1.0), (1, 9, 1.0)],
)
def test_a_chunk_alone_in_the_pipe_holds_it_up_by_its_whole_passing(stages, following, part):
    assert pipe_part(stages, following) == pytest.approx(part)


def test_a_prompt_that_meets_no_other_holds_a_token_up_in_every_stage():
    # 8 others send one prompt each in 1,000 tokens: 0.008 a token, never two in the pipe.
    work, traffic = work_at(pipeline_parallel=2), Traffic(input_tokens=1024, output_tokens=1000)
    held_up = decode_terms(work, 9, traffic)["others_prefill_dense"]
    assert held_up == pytest.approx(8 / 1000 * work.prefill_compute_seconds(1024))


def test_every_stage_has_a_steps_start_and_its_hosts_work():
    terms = decode_terms(work_at(pipeline_parallel=4), 64, Traffic(input_tokens=1, output_tokens=2000))
    # 16 requests in each of 4 stages.
    assert (terms["steps"], terms["requests"]) == (4, 64)


def test_busy_stages_wait_for_the_one_that_reads_the_most():
    # The stages have 10 or 11 of 32 layers, and the last the head as well.
    work = work_at(pipeline_parallel=3)
    level = dataclasses.replace(work, slowest_stage_part=1 / 3)
    assert work.slowest_stage_part > 1 / 3
    assert step_of(work, 1) == step_of(level, 1)
    hops = 2 * work.efficiency.decode["parallel_layers"] + 4 * work.hop_seconds(1)
    stretched = (step_of(work, 12) - hops) / (step_of(level, 12) - hops)
    assert stretched == pytest.approx(3 * work.slowest_stage_part, rel=1e-3)


@pytest.mark.parametrize("clients", [8, 64, 512])
def test_replicas_outrun_the_stages_of_a_pipeline_on_as_many_gpus(clients):
    traffic = Traffic(input_tokens=1024, output_tokens=1024)
    replicas = Deployment(work=work_at(), places=512, replicas=8, traffic=traffic)
    stages = Deployment(work=work_at(pipeline_parallel=8), places=512, replicas=1, traffic=traffic)
    assert replicas.at(clients).requests_per_second > stages.at(clients).requests_per_second


def test_ranks_on_several_nodes_talk_over_the_network():
    near = work_at(tensor_parallel=8)
    far = work_at(tensor_parallel=8, hardware=hardware(8, gpus_per_node=4))
    assert (near.tensor_link_bytes_per_second, far.tensor_link_bytes_per_second) == (450e9, 50e9)
    stages = work_at(tensor_parallel=2, pipeline_parallel=4, hardware=hardware(8, gpus_per_node=4))
    assert (stages.tensor_link_bytes_per_second, stages.stage_link_bytes_per_second) == (450e9, 50e9)


def test_the_first_token_takes_its_terms_weighed():
    work = work_at()
    weights = efficiency("vllm").prefill
    terms = prefill_terms(work, 64, Traffic(input_tokens=1024, output_tokens=128))
    assert {*terms, "all_reduce"} == set(weights)
    assert terms["queued_dense"] == 63 * work.prefill_compute_seconds(1024)
    expected = sum(weights[name] * term for name, term in terms.items())
    assert pace_of(work, Traffic(input_tokens=1024, output_tokens=128)).first_token_seconds(64) == pytest.approx(
        expected
    )


def test_a_slow_link_is_never_slower_than_its_own_rate():
    # PCIe at 32 GB/s: 32/450 of the weight fitted on NVLink is below 1.
    gpu = dataclasses.replace(hardware().gpu, link_bytes_per_second=32e9)
    work = work_at(tensor_parallel=2, hardware=hardware(2, gpu=gpu))
    terms = prefill_terms(work, 1, Traffic(input_tokens=1024, output_tokens=128))
    weights = work.efficiency.prefill
    expected = sum(weights[name] * term for name, term in terms.items()) + work.all_reduce_seconds(1024)
    assert pace_of(work, Traffic(input_tokens=1024, output_tokens=128)).first_token_seconds(1) == pytest.approx(
        expected
    )


def test_an_engine_whose_speed_is_not_described_has_no_work():
    asked = question(engine="transformers", engine_version=None)
    settings = resolve_settings(asked)
    replica = plan_replica(asked, settings, Degrees())
    with pytest.raises(NotYetAvailable, match="speed of transformers"):
        replica_work(asked.model, settings, asked.hardware, replica.stages, Degrees())


def test_fp8_weights_read_faster_and_multiply_faster():
    half, whole = work_at(weights="fp8"), work_at()
    assert half.peak_flops_per_second == pytest.approx(2 * whole.peak_flops_per_second, rel=0.001)
    assert step_of(half, 1) < step_of(whole, 1)


def test_each_other_request_prefills_once_in_a_requests_answer():
    work = work_at()
    terms = decode_terms(work, 5, Traffic(input_tokens=1024, output_tokens=100))
    assert terms["others_prefill_dense"] == pytest.approx(4 / 100 * work.prefill_compute_seconds(1024))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_every_timed_engine_reads_no_faster_than_the_memory(engine):
    fitted = efficiency(engine)
    assert fitted.decode["dense_weights"] >= 1
    assert fitted.token_band.low < 1 < fitted.token_band.high
    assert fitted.first_token_band.low < 1 < fitted.first_token_band.high


def test_a_tied_gpt2_has_work_for_its_head():
    work = work_at(spec=model(GPT2), max_model_len=1024)
    assert work.head_flops_per_token == 2 * 768 * 50257
