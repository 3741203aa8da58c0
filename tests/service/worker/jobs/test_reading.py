"""Reading a job from a stored plan and its request."""

import pytest

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.service.worker.jobs.reading import read_job
from tests.service.worker.cases import request


def test_a_job_takes_its_batch_from_the_plan_and_its_precision_from_the_request():
    job = read_job(request())
    assert (job.micro_batch_tokens, job.accumulation_steps, job.precision, job.world_size) == (64, 3, "bf16-mixed", 4)


def test_a_plan_without_a_layout_field_is_no_question():
    incomplete = request()
    del incomplete["plan"]["layout"]["zero_stage"]
    with pytest.raises(InvalidQuestion, match="zero_stage"):
        read_job(incomplete)


def test_an_unset_part_of_the_training_request_has_its_default():
    assert read_job(request(training={"kernels": None, "lora": None})).lora.rank == 16


def test_adapters_are_read_from_the_request():
    part = {"rank": 8, "target_modules": ["q_proj"], "double_quantization": False}
    lora = read_job(request(training={"method": "qlora", "lora": part})).lora
    assert (lora.rank, lora.target_modules, lora.double_quantization) == (8, ("q_proj",), False)


def test_recomputation_is_read_from_the_request():
    every = read_job(request(training={"recompute": {"every": 2}}, layout={"recompute": "full"}))
    parts = read_job(request(training={"recompute": {"modules": ["mlp"]}}, layout={"recompute": "selective"}))
    plain = read_job(request(training={"recompute": "full"}, layout={"recompute": "full"}))
    assert (every.recompute_every, parts.recompute_modules) == (2, ("mlp",))
    assert (plain.recompute_every, plain.recompute_modules) == (None, ())


def test_hidden_traffic_is_read_from_the_plan_and_what_asks_for_buffers_from_the_request():
    hidden = {"gradients": True, "parameters": True, "tensor_parallel": True, "expert_parallel": True}
    plain, planned = read_job(request()), request(layout={"overlap": hidden})
    assert (plain.overlap, plain.pairs_passes, read_job(planned).pairs_passes) == (None, False, True)
    assert not read_job(planned).asks_tensor_overlap
    planned["request"]["layout"] = {"overlap": {"tensor_parallel": True}}
    assert read_job(planned).asks_tensor_overlap


def test_context_ranks_hold_parts_of_a_sequence_and_of_the_parameters():
    wanted = read_job(request(layout={"context_parallel": 2}))
    # 4 data x 2 context ranks; 2 sequences of 32 / 2 tokens.
    assert (wanted.world_size, wanted.shard_ranks, wanted.micro_batch_tokens) == (8, 8, 32)
