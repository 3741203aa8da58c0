"""Every field of a request has an option, or a reason to be set by file alone; every option has a field."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from plimsoll.cli.infer_options import INFER
from plimsoll.cli.options import RequestOption
from plimsoll.cli.quantize_options import QUANTIZE
from plimsoll.cli.request_options import choices
from plimsoll.cli.train_options import TRAIN
from plimsoll.service.requests.jobs import QuantizeRequest
from plimsoll.service.requests.serving import InferRequest
from plimsoll.service.requests.training import TrainRequest

# Lists, objects within objects, and figures by the dozen: a file holds them better than a command line.
BY_FILE = {
    "model.config", "model.path", "hardware.fleet", "hardware.override", "hardware.gpu", "hardware.gpus",
    "hardware.network", "compare",
    "training.evaluation", "training.companions", "training.recompute", "training.activation_offload",
    "training.lora.double_quantization",
    "resilience.gpu_failures_per_month",
    "serving.input_length", "serving.output_length", "serving.disaggregated",
}  # fmt: skip


def models_within(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        return
    for inner in typing.get_args(annotation):
        yield from models_within(inner)


def fields_of(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Yield the path of every field that is no object, by its name on the wire."""
    for name, field in model.model_fields.items():
        here = f"{path}{field.alias or name}"
        inner = list(models_within(field.annotation))
        if here in BY_FILE or not inner:
            yield here
        for each in inner:
            if here not in BY_FILE:
                yield from fields_of(each, f"{here}.")


@pytest.mark.parametrize(
    ("request_kind", "options"), [(TrainRequest, TRAIN), (InferRequest, INFER), (QuantizeRequest, QUANTIZE)]
)
def test_options_and_fields_are_the_same(request_kind: type[BaseModel], options: tuple[RequestOption, ...]):
    fields = set(fields_of(request_kind))
    optional = {option.field for option in options}
    assert fields - optional - BY_FILE == set()
    assert optional - fields == set()


@pytest.mark.parametrize("options", [TRAIN, INFER, QUANTIZE])
def test_no_two_options_have_a_name_in_common(options: tuple[RequestOption, ...]):
    flags = [flag for option in options for flag in option.flags]
    assert len(flags) == len(set(flags))


def test_choices_are_those_of_the_requests():
    assert choices("Method")("q") == ["qlora"]
    assert choices("Engine")("") == ["vllm", "sglang", "tensorrt-llm", "transformers"]


@pytest.mark.parametrize("option", [option for option in (*TRAIN, *INFER, *QUANTIZE) if option.complete])
def test_every_completion_completes(option: RequestOption):
    assert option.complete
    assert option.complete("")
