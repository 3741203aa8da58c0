"""Bodies asked of the service."""

import pytest

from benchmarks.accuracy.asking import INVALID_REQUEST, Refused, Service, question_of

BODY = {
    "model": "meta-llama/Llama-3.1-8B",
    "hardware": {"gpu": "h100-sxm-80gb", "gpus": 8},
    "training": {"micro_batch_size": 1, "global_batch_size": 8, "sequence_length": 4096},
    "layout": {"data_parallel": 8, "zero_stage": 3},
    "framework": "fsdp2",
}


@pytest.fixture(scope="module")
def service():
    return Service()


def test_an_answer_is_the_route_s_json(service):
    answer = service.answer(BODY)
    assert answer["verdict"] == "fits"
    assert answer["plan"]["layout"]["zero_stage"] == 3
    assert answer["plan"]["memory"]["allocated_bytes"] < answer["plan"]["memory"]["reserved_bytes"]


def test_the_schema_refuses_what_it_would_refuse_of_a_client(service):
    refused = service.answer({**BODY, "measured_seconds": 1.5})
    assert isinstance(refused, Refused)
    assert refused.code == INVALID_REQUEST


def test_the_layout_s_rules_refuse(service):
    # Llama 3.1 8B has 32 layers.
    refused = service.answer(
        {**BODY, "layout": {"pipeline_parallel": 64}, "hardware": {"gpu": "h100-sxm-80gb", "gpus": 64}}
    )
    assert isinstance(refused, Refused)
    assert refused.code == "impossible-layout"


def test_a_question_is_the_body_s():
    question = question_of(BODY)
    assert question.framework == "fsdp2"
    assert question.layout.data_parallel == 8
    assert question.hardware.gpus.minimum == 8
