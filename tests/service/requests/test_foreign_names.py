"""What other programs call a field or a value is answered with what it is called here."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from plimsoll.service.requests.calibration import CalibrationRequest
from plimsoll.service.requests.field_names import _paths
from plimsoll.service.requests.foreign_names import FIELDS, value_meant
from plimsoll.service.requests.jobs import QuantizeRequest
from plimsoll.service.requests.pointers import field_errors
from plimsoll.service.requests.serving import InferRequest
from plimsoll.service.requests.training import TrainRequest
from tests.api.questions import infer, train

FRAMEWORKS = "'any', 'fsdp2', 'ddp', 'megatron', 'megatron-deepspeed', 'accelerate' or 'atorch'"
OPTIMIZERS = "'adamw', 'adamw-8bit', 'paged-adamw-8bit' or 'sgd-momentum'"
WEIGHTS = "'bf16', 'fp8', 'int4' or 'nf4'"
PRECISIONS = "'fp32', 'fp16-mixed', 'bf16-mixed' or 'bf16'"


def told(body: Any, request: type[BaseModel] = TrainRequest) -> dict[str, str]:
    with pytest.raises(ValidationError) as refusal:
        request.model_validate(body)
    return {error.pointer: error.detail for error in field_errors(refusal.value.errors(), body, request)}


@pytest.mark.parametrize(
    ("given", "expected", "meant"),
    [
        ("torchtitan", FRAMEWORKS, "'fsdp2'"),
        ("FSDP2", FRAMEWORKS, "'fsdp2'"),
        ("transformers", FRAMEWORKS, "'accelerate'"),
        ("megatron-lm", FRAMEWORKS, "'megatron'"),
        ("pytorch", FRAMEWORKS, "'fsdp2' or 'ddp'"),
        ("adam", OPTIMIZERS, "'adamw'"),
        ("AdamW", OPTIMIZERS, "'adamw'"),
        ("paged_adamw_8bit", OPTIMIZERS, "'paged-adamw-8bit'"),
        ("bf16_mixed", PRECISIONS, "'bf16-mixed'"),
        ("bfloat16", PRECISIONS, "'bf16-mixed' or 'bf16'"),
        ("bf16-mixd", PRECISIONS, "'bf16-mixed'"),
        ("awq", WEIGHTS, "'int4'"),
        ("GPTQ", WEIGHTS, "'int4'"),
    ],
)
def test_a_foreign_or_misspelt_value_is_answered_with_the_one_meant(given: str, expected: str, meant: str):
    assert value_meant(given, expected) == f" Did you mean {meant}?"


@pytest.mark.parametrize("given", ["lamb", "unsloth", 8, None, [1]])
def test_a_value_that_is_like_none_is_answered_with_no_guess(given: object):
    assert value_meant(given, OPTIMIZERS) == ""


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("gradient_accumulation_steps", "it follows from global_batch_size, micro_batch_size and data_parallel."),
        ("per_device_train_batch_size", "did you mean /training/micro_batch_size?"),
        ("max_seq_length", "did you mean /training/sequence_length?"),
        ("gradient_checkpointing", "did you mean /training/recompute?"),
        ("local_batch_size", "did you mean /training/global_batch_size or /training/micro_batch_size?"),
        ("learning_rate", "neither memory nor time depends on it, so leave it out."),
    ],
)
def test_a_foreign_field_is_answered_with_what_says_it_here(field: str, words: str):
    assert told(train(training={field: 8}))[f"/training/{field}"].endswith(words)


@pytest.mark.parametrize(
    ("given", "words"),
    [("awq", "did you mean /serving/weights 'int4'?"), ("fp9", "did you mean /serving/weights?"), (4, "weights?")],
)
def test_a_quantization_by_another_name_is_answered_with_field_and_format(given: object, words: str):
    asked = {"model": "m", "hardware": {"gpu": "h100-sxm-80gb", "gpus": 1}, "serving": {"quantization": given}}
    assert told(asked, InferRequest)["/serving/quantization"].endswith(words)


@pytest.mark.parametrize(("field", "meant"), [("dp_degree", "data_parallel"), ("tp_size", "tensor_parallel")])
def test_a_degree_with_an_ending_of_other_programs_is_known(field: str, meant: str):
    assert told(train(layout={field: 2}))[f"/layout/{field}"].endswith(f" {meant}?")


@pytest.mark.parametrize(
    ("part", "field", "meant"),
    [
        ("serving", "quantization", "/serving/weights"),
        ("serving", "dtype", "/serving/weights"),
        ("serving", "kv_cache_dtype", "/serving/kv_cache"),
        ("serving", "tensor_parallel_size", "/layout/tensor_parallel"),
        ("serving", "max_tokens", "/serving/output_tokens"),
        ("serving", "batch_size", "/serving/concurrency"),
        ("hardware", "count", "/hardware/gpus"),
    ],
)
def test_an_engines_option_is_answered_with_the_field_that_says_it(part: str, field: str, meant: str):
    body = infer()
    body[part] = {**body.get(part, {}), field: 8}
    assert told(body, InferRequest)[f"/{part}/{field}"].endswith(f" {meant}?")


def test_every_foreign_field_stands_for_one_that_a_request_has():
    had = {*_paths(TrainRequest), *_paths(InferRequest)}
    assert {path for paths in FIELDS.values() for path in paths} <= had


@pytest.mark.parametrize(
    "model", [[1], 1, None, True, {"parameters": 7e9, "path": "x"}, {"model_type": "llama", "hidden_size": 4096}]
)
def test_a_model_of_no_form_is_told_all_forms(model: Any):
    body = {**train(), "model": model}
    assert told(body) == {
        "/model": "model must be a model's name, or an object with one of config (the contents of a config.json), "
        "path, hub or parameters."
    }


@pytest.mark.parametrize("gpu", [None, ["h100"], 1])
def test_a_gpu_of_no_form_is_told_both_forms(gpu: Any):
    body = {**train(), "hardware": {"gpu": gpu, "gpus": 8}}
    assert told(body) == {"/hardware/gpu": "gpu must be a GPU's name, or an object with its figures."}


@pytest.mark.parametrize("gpus", ["8", [8, 16]])
def test_a_number_of_gpus_of_no_form_is_told_both_forms(gpus: Any):
    body = {**train(), "hardware": {"gpu": "h100", "gpus": gpus}}
    assert told(body) == {"/hardware/gpus": "gpus must be a whole number, or an object with min and max."}


def test_weights_of_no_form_are_told_both_forms():
    body = {"model": "llama-3.2-1b", "scheme": "nf4", "weights": "zeros"}
    assert told(body, QuantizeRequest) == {
        "/weights": "weights must be 'random', or an object with the path of a checkpoint."
    }


@pytest.mark.parametrize(
    ("benchmark", "words"),
    [
        ({"kind": "gemm"}, "must be 'matmul', 'memory', 'attention' or 'all_reduce'."),
        ({"rows": 8}, "is missing."),
    ],
)
def test_a_microbenchmark_of_no_known_kind_is_told_the_kinds(benchmark: dict[str, Any], words: str):
    body = {"microbenchmarks": [benchmark]}
    assert told(body, CalibrationRequest) == {"/microbenchmarks/0/kind": f"kind {words}"}


def test_a_bound_is_written_as_people_write_it():
    assert told({**train(), "model": {"parameters": 7}}) == {"/model/parameters": "parameters must be at least 1,000."}
