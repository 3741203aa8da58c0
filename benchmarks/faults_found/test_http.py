"""HTTP's own promises, and what a client reads: heads, tags, names, defaults, text."""

from __future__ import annotations

import gzip
import re
import time
from typing import Any

import httpx
import pytest

HARDWARE = {"gpu": "h100-sxm-80gb", "gpus": 8}
JOB: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "hardware": HARDWARE,
    "framework": "fsdp2",
    "training": {"sequence_length": 4096, "global_batch_size": 64},
}
DEPLOYMENT: dict[str, Any] = {"model": "llama-3.1-8b", "hardware": {"gpu": "h100-sxm-80gb", "gpus": 1}}


def planned(service: httpx.Client) -> dict[str, Any]:
    body: dict[str, Any] = service.post("/plan/train", json=JOB).raise_for_status().json()
    return body


def told(refused: httpx.Response) -> dict[str, str]:
    return {error["pointer"]: error["detail"] for error in refused.json()["errors"]}


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/models", "/hardware", "/formats", "/plans", "/docs"])
def test_head_is_answered_as_get_is(service: httpx.Client, path: str):
    head, whole = service.head(path), service.get(path)
    assert (head.status_code, head.content) == (whole.status_code, b"")
    assert head.headers["content-length"] == whole.headers["content-length"]


def test_a_plan_that_is_known_is_not_sent_again(service: httpx.Client):
    address = f"/plans/{planned(service)['plan_id']}"
    tag = service.get(address).headers["etag"]
    again = service.get(address, headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")


def test_large_answers_are_compressed(service: httpx.Client):
    answer = service.post("/plan/train", json=JOB, headers={"accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"


def test_a_queued_job_is_named_and_a_replayed_answer_is_marked(service: httpx.Client):
    plan_id = planned(service)["plan_id"]
    address, headers = f"/plans/{plan_id}/validate", {"idempotency-key": f"faults-found-{plan_id}"}
    answers = [service.post(address, json={"level": "count"}, headers=headers) for _ in range(2)]
    for answer in answers:
        assert answer.status_code == 202
        assert answer.headers["location"] == f"/jobs/{answer.json()['job_id']}"
    assert answers[1].headers["idempotency-replayed"] == "true"


def test_the_contract_states_bounds_security_servers_and_licence(service: httpx.Client):
    response = service.get("/openapi.json")
    contract = response.json()
    assert not re.search(r'"(ge|le|gt|lt)":', response.text)
    assert contract["servers"]
    assert contract["info"]["license"]
    operations = [operation for path in contract["paths"].values() for operation in path.values()]
    assert all("security" in operation for operation in operations)


def test_a_training_question_needs_no_training(service: httpx.Client):
    plan = service.post("/plan/train", json={"model": "llama-3.1-8b", "hardware": HARDWARE}).raise_for_status().json()
    assert "training.sequence_length is 4,096 tokens, the default." in plan["assumptions"]
    assert "training.global_batch_size is 64 sequences per step, the default." in plan["assumptions"]


@pytest.mark.parametrize(
    ("change", "pointer", "meant"),
    [
        ({"training": {"sequence_lenght": 4096}}, "/training/sequence_lenght", "sequence_length"),
        ({"layout": {"tensor_paralel": 2}}, "/layout/tensor_paralel", "tensor_parallel"),
        ({"objectiv": "cost"}, "/objectiv", "objective"),
    ],
)
def test_a_misspelt_field_is_told_what_was_meant(
    service: httpx.Client, change: dict[str, Any], pointer: str, meant: str
):
    assert told(service.post("/plan/train", json={**JOB, **change}))[pointer].endswith(f"did you mean {meant}?")


def test_ids_in_text_are_whole(service: httpx.Client):
    planned(service)
    plan_id = service.get("/plans", params={"limit": 1}).json()["items"][0]["plan_id"]
    listed = service.get("/plans", params={"format": "text", "limit": 200}).text
    assert plan_id in listed
    # 40 digits of a SHA-1, wherever one begins.
    assert {len(found) for found in re.findall(r"\b[0-9a-f]{30,}\b", listed)} == {40}


@pytest.mark.parametrize(
    "job", [JOB, {**JOB, "model": "mixtral-8x7b", "hardware": {**HARDWARE, "gpus": 64}, "framework": "any"}]
)
def test_no_two_alternatives_of_a_training_plan_read_alike(service: httpx.Client, job: dict[str, Any]):
    text = service.post("/plan/train?format=text", json=job).raise_for_status().text
    listed = text.partition("\nAlternatives\n")[2].partition("\n\n")[0].splitlines()[1:]
    labels = [line.strip().partition("  ")[0] for line in listed if "GPU" in line and ": " in line]
    assert len(labels) == len(set(labels)) > 1


def test_models_are_searched(service: httpx.Client):
    found = service.get("/models", params={"search": "LLAMA-3.1-8b"}).raise_for_status().json()["items"]
    assert "meta-llama/Llama-3.1-8B" in {model["id"] for model in found}
    assert len(found) < 10


def test_a_misspelt_field_is_told_before_what_is_missing_for_it(service: httpx.Client):
    problem = service.post("/plan/train", json={"modell": "llama-3.1-8b", "hardware": HARDWARE}).json()
    assert problem["detail"].startswith("/modell is not a field here; did you mean model?")


def test_very_many_unknown_fields_are_refused_at_once(service: httpx.Client):
    started = time.monotonic()
    refused = service.post("/plan/train", json={f"field{number}": 1 for number in range(95_000)})
    assert refused.status_code == 400
    # 2.5 s it had been, in which nobody else was answered.
    assert time.monotonic() - started < 2.0


def test_a_long_name_is_not_sent_back_whole(service: httpx.Client):
    assert len(service.post("/plan/train", json={"x" * 1_000_000: 1}).content) < 10_000


def test_gzip_that_a_client_refuses_is_not_sent(service: httpx.Client):
    encoding = {header: service.get("/models", headers={"accept-encoding": header}).headers.get("content-encoding")
                for header in ("gzip", "gzip;q=0")}  # fmt: skip
    assert encoding == {"gzip": "gzip", "gzip;q=0": None}


def test_a_compressed_body_is_refused_as_that(service: httpx.Client):
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    assert service.post("/plan/train", content=gzip.compress(b"{}"), headers=headers).status_code == 415


@pytest.mark.parametrize(("path", "words", "found"), [
    ("/models", "llama 8b", "meta-llama/Llama-3.1-8B"),
    ("/hardware", "80gb nvidia h100", "h100-sxm-80gb"),
])  # fmt: skip
def test_a_search_finds_words_in_any_order(service: httpx.Client, path: str, words: str, found: str):
    items = service.get(path, params={"search": words}).raise_for_status().json()["items"]
    assert found in {item["id"] for item in items}


def test_serving_alternatives_state_their_formats_whole(service: httpx.Client):
    question = {**DEPLOYMENT, "hardware": HARDWARE, "serving": {"concurrency": 64, "weights": ["bf16", "fp8"]}}
    text = service.post("/plan/infer?format=text", json=question).raise_for_status().text
    listed = text.partition("\nAlternatives\n")[2].partition("\n\n")[0].splitlines()[1:]
    labels = [line for line in listed if " GPUs: " in line]
    assert labels
    assert all(re.search(r" (bf16|fp8)/(bf16|fp8)\b", line) for line in labels)


@pytest.mark.parametrize(("part", "pointer", "words"), [
    ({"model": {"parameters": 7e9, "path": "x"}}, "/model", "one of config"),
    ({"model": {"model_type": "llama", "hidden_size": 4096}}, "/model", "the contents of a config.json"),
    ({"hardware": {"gpu": None, "gpus": 8}}, "/hardware/gpu", "an object with its figures"),
    ({"hardware": {"gpu": "h100", "gpus": [8, 16]}}, "/hardware/gpus", "an object with min and max"),
    ({"model": "zzz"}, "/model", "GET /models"),
    ({"objective": "deadline", "deadline_seconds": 3600}, "/training/tokens", "needs tokens"),
    ({"model": {"parameters": 7}}, "/model/parameters", "at least 1,000."),
])  # fmt: skip
def test_a_refusal_tells_the_way_out(service: httpx.Client, part: dict[str, Any], pointer: str, words: str):
    refused = service.post("/plan/train", json={**JOB, **part})
    assert refused.status_code == 422
    assert words in told(refused)[pointer]


def test_an_engines_option_is_answered_with_the_field_that_says_it(service: httpx.Client):
    meant = {
        "tensor_parallel_size": "/layout/tensor_parallel",
        "quantization": "/serving/weights",
        "kv_cache_dtype": "/serving/kv_cache",
    }
    refused = service.post("/plan/infer", json={**DEPLOYMENT, "serving": dict.fromkeys(meant, 8)})
    for name, field in meant.items():
        assert told(refused)[f"/serving/{name}"].endswith(f"did you mean {field}?")


def test_a_microbenchmark_of_an_unknown_kind_is_told_the_kinds(service: httpx.Client):
    refused = service.put("/hardware/h100/calibration", json={"microbenchmarks": [{"kind": "gemm"}]})
    assert told(refused) == {"/microbenchmarks/0/kind": "kind must be 'matmul', 'memory', 'attention' or 'all_reduce'."}


def test_a_wrong_path_or_method_is_answered_with_the_right_ones(service: httpx.Client):
    assert "Nearest: /plans" in service.get("/plan").json()["detail"]
    assert "GET, HEAD" in service.put("/plans").json()["detail"]


def test_more_bytes_than_a_card_has_are_no_measurement_of_it(service: httpx.Client):
    report = {"plan_id": planned(service)["plan_id"], "peak_bytes": 10**15}
    refused = service.post("/measurements", json=report)
    assert (refused.status_code, list(told(refused))) == (422, ["/peak_bytes"])


@pytest.mark.parametrize(("path", "detail"), [
    ("/plans?limit=0", "/limit in the query must be at least 1."),
    ("/plans?verdict=perhaps", "/verdict in the query must be 'fits', 'tight' or 'no'."),
    ("/models?q=llama", "/q in the query is not a parameter here; the parameters are search."),
])  # fmt: skip
def test_a_parameter_is_told_as_a_field_is(service: httpx.Client, path: str, detail: str):
    assert service.get(path).json()["detail"] == detail
