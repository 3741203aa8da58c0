"""A misspelt field is answered with the one that was meant, at every depth."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from plimsoll.service.requests.calibration import CalibrationRequest
from plimsoll.service.requests.field_names import fields_at, initials
from plimsoll.service.requests.jobs import QuantizeRequest
from plimsoll.service.requests.pointers import field_errors
from plimsoll.service.requests.serving import InferRequest
from plimsoll.service.requests.training import TrainRequest
from plimsoll.service.requests.values import MOST_NAME_CHARACTERS
from tests.api.questions import infer, train


def told(request: type[BaseModel], body: Any) -> dict[str, str]:
    with pytest.raises(ValidationError) as refusal:
        request.model_validate(body)
    return {error.pointer: error.detail for error in field_errors(refusal.value.errors(), body, request)}


@pytest.mark.parametrize(
    ("request_kind", "body", "pointer", "meant"),
    [
        (TrainRequest, train(objectiv="cost"), "/objectiv", "objective"),
        (TrainRequest, train(training={"sequence_lenght": 4}), "/training/sequence_lenght", "sequence_length"),
        (
            TrainRequest,
            train(training={"lora": {"target_module": []}}),
            "/training/lora/target_module",
            "target_modules",
        ),
        (TrainRequest, train(layout={"tensor_paralel": 2}), "/layout/tensor_paralel", "tensor_parallel"),
        (TrainRequest, train(layout={"tp": 2}), "/layout/tp", "tensor_parallel"),
        (TrainRequest, train(model={"confg": {}}), "/model/confg", "config"),
        (TrainRequest, train(compare=[{"zero": 1}]), "/compare/0/zero", "zero_stage"),
        (TrainRequest, train(hardware={"fleet": [{"gpu": "h100", "gpuss": 1}]}), "/hardware/fleet/0/gpuss", "gpus"),
        (InferRequest, infer(serving={"slo": {"ttft": 1}}), "/serving/slo/ttft", "ttft_seconds"),
        (QuantizeRequest, {"model": "m", "scheme": "nf4", "blocksize": 64}, "/blocksize", "block_size"),
        (CalibrationRequest, {"microbenchmark": []}, "/microbenchmark", "microbenchmarks"),
    ],
)
def test_what_was_meant_is_named(request_kind: type[BaseModel], body: Any, pointer: str, meant: str):
    name = pointer.rpartition("/")[2]
    assert told(request_kind, body)[pointer] == f"{name} is not a field here; did you mean {meant}?"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("sequence_length", "/training/sequence_length"),
        ("gpus", "/hardware/gpus"),
        ("rank", "/training/lora/rank"),
        ("tp", "/layout/tensor_parallel"),
    ],
)
def test_a_field_in_the_wrong_place_is_told_its_own(name: str, meant: str):
    assert told(TrainRequest, train(**{name: 1}))[f"/{name}"].endswith(f" {meant}?")


@pytest.mark.parametrize("name", ["num_gpus", "gpu_count", "number_of_gpus", "n_gpus"])
def test_a_name_is_bare_of_what_says_that_it_is_a_number(name: str):
    body = train(hardware={"gpu": "h100", name: 8})
    meant = told(TrainRequest, body)[f"/hardware/{name}"].removeprefix(f"{name} is not a field here; did you mean ")
    assert meant in ("gpus?", "/hardware/gpus?")


def test_an_unknown_field_comes_before_the_one_that_is_missing_for_it():
    body = train(modell="llama-3.1-8b")
    del body["model"]
    assert list(told(TrainRequest, body)) == ["/modell", "/model"]


def test_of_a_name_longer_than_any_the_beginning_is_told():
    (pointer,) = told(TrainRequest, train(**{"x" * 1_000_000: 1}))
    assert pointer == f"/{'x' * MOST_NAME_CHARACTERS}…"


def test_what_is_like_nothing_is_told_what_there_is():
    assert told(QuantizeRequest, {"model": "m", "scheme": "nf4", "zzqq": 1})["/zzqq"] == (
        "zzqq is not a field here; the fields are model, scheme, double_quantization, block_size, weights, seed, "
        "output."
    )


def test_a_field_that_is_there_already_is_meant_only_where_no_other_is():
    # Of the two batch sizes one is given, so that the other is missing.
    assert told(TrainRequest, train(training={"batch_size": 1}))["/training/batch_size"].endswith(" micro_batch_size?")


def test_a_place_with_several_forms_has_the_fields_of_all():
    assert set(fields_at(("model", "(config)"), TrainRequest)) == {"config", "path", "hub", "revision", "parameters"}


def test_every_name_of_every_place_is_found_again_with_two_letters_swapped():
    for name in fields_at(("training",), TrainRequest):
        if len(name) < 6:
            continue
        swapped = f"{name[:3]}{name[4]}{name[3]}{name[5:]}"
        if swapped == name:
            continue
        body = train(training={swapped: 1})
        assert name in told(TrainRequest, body)[f"/training/{swapped}"]


def test_initials_are_of_words():
    assert initials("tensor_parallel") == "tp"
