"""Both front doors, asked anything: an answer or a declared error, parts that add up, and no surprises in between."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.planners.serving.planning import plan_serving
from plimsoll.planners.training.planning import plan_training
from plimsoll.service.catalogue.gpus import resolve_fleet
from plimsoll.service.ground.settings import Settings
from plimsoll.service.models.resolving import ModelResolver
from plimsoll.service.requests.serving import InferRequest
from plimsoll.service.requests.training import TrainRequest

MODELS = ("meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.1-8B", "mistralai/Mixtral-8x7B-v0.1", "openai-community/gpt2")
GPUS = ("h100-sxm-80gb", "a100-sxm-40gb", "l4-24gb", "mi300x-192gb")
FRAMEWORKS = ("reference", "ddp", "fsdp2", "deepspeed", "megatron", "accelerate")
PRECISIONS = ("fp32", "fp16-mixed", "bf16-mixed", "bf16")
OPTIMIZERS = ("adamw", "sgd", "sgd-momentum", "adafactor", "lion", "adamw-8bit")
# Sums of floating-point numbers in another order.
CLOSE = 1e-9

resolver = ModelResolver(catalogue(), Settings())
powers = st.sampled_from((1, 2, 4, 8))


def train(body):
    request = TrainRequest.model_validate(body)
    model = resolver.resolve(request.model)
    return plan_training(request.to_question(model.spec, resolve_fleet(request.hardware, catalogue())[0]))


def infer(body):
    request = InferRequest.model_validate(body)
    model = resolver.resolve(request.model)
    return plan_serving(request.to_question(model.spec, resolve_fleet(request.hardware, catalogue())[0]))


def total(items) -> float:
    return sum(getattr(items, field.name) for field in fields(items))


training_bodies = st.fixed_dictionaries(
    {
        "model": st.sampled_from(MODELS),
        "hardware": st.fixed_dictionaries({"gpu": st.sampled_from(GPUS), "gpus": powers, "gpus_per_node": st.just(8)}),
        "framework": st.sampled_from(FRAMEWORKS),
        "training": st.fixed_dictionaries(
            {
                "precision": st.sampled_from(PRECISIONS),
                "optimizer": st.sampled_from(OPTIMIZERS),
                "sequence_length": st.sampled_from((1, 128, 1_024, 8_192, 131_072)),
                "global_batch_size": st.sampled_from((1, 8, 64, 1_000)),
            },
            optional={"micro_batch_size": powers, "recompute": st.sampled_from(("none", "selective", "full"))},
        ),
        "layout": st.fixed_dictionaries(
            {},
            optional={
                "data_parallel": powers,
                "tensor_parallel": powers,
                "pipeline_parallel": powers,
                "context_parallel": powers,
                "expert_parallel": powers,
                "zero_stage": st.integers(0, 3),
                "offload": st.sampled_from(("none", "optimizer", "optimizer+parameters")),
            },
        ),
    }
)


@given(body=training_bodies)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_a_training_plan_adds_up_or_is_refused_by_a_declared_error(body):
    try:
        answer = train(body)
    except (PlimsollError, ValidationError):
        return
    memory, step = answer.plan.memory, answer.plan.step
    assert total(memory.items) == pytest.approx(memory.peak_bytes, rel=CLOSE)
    assert memory.peak_low_bytes <= memory.peak_bytes <= memory.peak_high_bytes
    assert memory.margin_bytes == memory.limit_bytes - memory.peak_bytes
    assert total(step.parts) == pytest.approx(step.seconds, rel=CLOSE)
    assert step.low_seconds <= step.seconds <= step.high_seconds
    assert answer.fits == (memory.peak_bytes <= memory.limit_bytes)


serving_bodies = st.fixed_dictionaries(
    {
        "model": st.sampled_from(MODELS),
        "hardware": st.fixed_dictionaries({"gpu": st.sampled_from(GPUS), "gpus": powers}),
        "serving": st.fixed_dictionaries(
            {
                "max_model_len": st.sampled_from((16, 1_024, 8_192)),
                "input_tokens": st.sampled_from((1, 256)),
                "output_tokens": st.sampled_from((1, 256)),
                "concurrency": st.sampled_from((1, 64, 1_000)),
                "engine": st.sampled_from(("vllm", "sglang", "tensorrt-llm", "transformers")),
            },
            optional={
                "kv_cache": st.sampled_from(("bf16", "fp8", "int8")),
                "weights": st.sampled_from(("bf16", "fp8", "int4", "nf4")),
            },
        ),
        "layout": st.fixed_dictionaries({}, optional={"tensor_parallel": powers, "data_parallel": powers}),
    }
)


@given(body=serving_bodies)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_a_serving_plan_adds_up_or_is_refused_by_a_declared_error(body):
    try:
        answer = infer(body)
    except (PlimsollError, ValidationError):
        return
    memory, kv = answer.plan.memory, answer.plan.kv
    assert total(memory.items) == pytest.approx(memory.peak_bytes, rel=CLOSE)
    assert kv.available_low_bytes <= kv.available_bytes <= kv.available_high_bytes
    assert min(kv.tokens, kv.blocks, kv.max_concurrency) >= 0


def pinned(*, model=MODELS[0], framework="fsdp2", data=8, micro_batch=1, sequence=2_048):
    return {
        "model": model,
        "hardware": {"gpu": "h100-sxm-80gb", "gpus": data, "gpus_per_node": 8},
        "framework": framework,
        "training": {
            "sequence_length": sequence,
            "global_batch_size": 64 * data,
            "micro_batch_size": micro_batch,
            "recompute": "none",
        },
        "layout": {
            "data_parallel": data,
            "tensor_parallel": 1,
            "pipeline_parallel": 1,
            "context_parallel": 1,
            "zero_stage": 3,
        },
    }


@given(framework=st.sampled_from(("reference", "fsdp2", "deepspeed")), base=powers)
@settings(max_examples=5, deadline=None, derandomize=True)
def test_a_larger_micro_batch_never_needs_less_memory(framework, base):
    peaks = [train(pinned(framework=framework, micro_batch=base * factor)).plan.memory.peak_bytes for factor in (1, 2)]
    assert peaks == sorted(peaks)


@given(framework=st.sampled_from(("reference", "fsdp2", "deepspeed")), sequence=st.integers(64, 8_192))
@settings(max_examples=5, deadline=None, derandomize=True)
def test_more_tokens_never_need_less_memory_or_time(framework, sequence):
    plans = [train(pinned(framework=framework, sequence=tokens)).plan for tokens in (sequence, 2 * sequence)]
    assert plans[0].memory.peak_bytes <= plans[1].memory.peak_bytes
    assert plans[0].step.seconds <= plans[1].step.seconds


@pytest.mark.parametrize("framework", ["reference", "fsdp2", "deepspeed"])
def test_more_gpus_to_shard_over_never_need_more_allocated_bytes_each(framework):
    needed = [train(pinned(framework=framework, data=gpus)).plan.memory.allocated_bytes for gpus in (2, 4, 8)]
    assert needed == sorted(needed, reverse=True)


@given(tokens=st.integers(16, 16_384))
@settings(max_examples=5, deadline=None, derandomize=True)
def test_longer_requests_are_never_held_in_larger_numbers(tokens):
    held = [infer(_served(tokens=length, gpus=1)).plan.kv.max_concurrency for length in (tokens, 2 * tokens)]
    assert held == sorted(held, reverse=True)


def test_more_gpus_never_hold_fewer_tokens():
    held = [infer(_served(tokens=4_096, gpus=gpus)).plan.kv.tokens for gpus in (1, 2, 4, 8)]
    assert held == sorted(held)


def test_more_requests_at_once_are_never_answered_sooner_each():
    served = [infer(_served(tokens=4_096, gpus=1, concurrency=count)).plan.performance for count in (1, 8, 32)]
    seconds = [performance.tpot_seconds for performance in served]
    assert seconds == sorted(seconds)


def _served(*, tokens, gpus, concurrency=1):
    return {
        "model": "meta-llama/Llama-3.1-8B",
        "hardware": {"gpu": "h100-sxm-80gb", "gpus": gpus},
        "serving": {"max_model_len": tokens, "input_tokens": 8, "output_tokens": 8, "concurrency": concurrency},
        "layout": {"tensor_parallel": gpus, "pipeline_parallel": 1, "data_parallel": 1},
    }
