"""Bad input: refused with a pointer to the field, and nothing of it is stored."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from plimsoll.api.errors import MOST_FIELD_ERRORS
from plimsoll.api.strict_json import MOST_JSON_ENTRIES, MOST_MEMBERS
from tests.api.questions import TINY_CONFIG, infer, train

JSON = {"content-type": "application/json"}


async def refused(client: httpx.AsyncClient, path: str, body: Any, status: int = 422) -> dict[str, Any]:
    """Return the problem document with which a body is refused, after a look that nothing was stored."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = await client.post(path, content=content, headers=JSON)
    problem: dict[str, Any] = response.json()
    assert response.status_code == status, problem
    assert response.headers["content-type"] == "application/problem+json"
    assert "Traceback" not in response.text
    assert (await client.get("/plans")).json()["items"] == []
    assert (await client.get("/jobs")).json()["items"] == []
    return problem


def pointers(problem: dict[str, Any]) -> list[str]:
    return [error["pointer"] for error in problem["errors"]]


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        ("/plan/train", train(trainning={}), "/trainning"),
        ("/plan/infer", infer(serving={"max_len": 1}), "/serving/max_len"),
        ("/quantize", {"model": "llama-3.2-1b", "scheme": "nf4", "blocksize": 64}, "/blocksize"),
        ("/models/describe", {"model": "llama-3.2-1b", "x": 1}, "/x"),
        ("/measurements", {"plan_id": "x", "peak_byte": 1}, "/peak_byte"),
    ],
)
async def test_an_unknown_field(client: httpx.AsyncClient, path: str, body: Any, pointer: str):
    assert pointers(await refused(client, path, body)) == [pointer]


@pytest.mark.parametrize(("path", "body"), [("/plan/train", train), ("/plan/infer", infer)])
async def test_an_unknown_model_or_gpu_with_the_nearest_names(client: httpx.AsyncClient, path: str, body: Any):
    problem = await refused(client, path, body(model="meta-llama/Llama-3.1-9B"))
    assert pointers(problem) == ["/model"]
    assert "meta-llama/Llama-3.1-8B" in problem["nearest"]
    problem = await refused(client, path, body(hardware={"gpu": "h100-sxm-88gb", "gpus": 1}))
    assert pointers(problem) == ["/hardware/gpu"]
    assert "h100-sxm-80gb" in problem["nearest"]


async def test_an_unknown_model_type_with_the_nearest_names(client: httpx.AsyncClient):
    problem = await refused(client, "/plan/train", train(model={"config": {**TINY_CONFIG, "model_type": "lama"}}))
    assert pointers(problem) == ["/model/config/model_type"]
    assert "llama" in problem["nearest"]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"num_attention_heads": 3, "num_key_value_heads": 3}, "/model/config/num_attention_heads"),
        ({"num_key_value_heads": 3}, "/model/config/num_key_value_heads"),
        ({"hidden_size": -1}, "/model/config/hidden_size"),
        ({"hidden_size": 10**30}, "/model/config/hidden_size"),
        ({"num_hidden_layers": 10**9}, "/model/config/num_hidden_layers"),
        ({"vocab_size": "many"}, "/model/config/vocab_size"),
        ({"vocab_size": None}, "/model/config/vocab_size"),
    ],
)
async def test_a_config_whose_sizes_do_not_divide_or_are_absurd(client: httpx.AsyncClient, change: Any, pointer: str):
    problem = await refused(client, "/plan/train", train(model={"config": {**TINY_CONFIG, **change}}))
    assert pointers(problem) == [pointer]


@pytest.mark.parametrize(
    "parts",
    [
        {"hardware": {"gpu": "h100", "gpus": 8}, "layout": {"tensor_parallel": 3}},
        {"hardware": {"gpu": "h100", "gpus": 8}, "layout": {"data_parallel": 8, "tensor_parallel": 2}},
        {"hardware": {"gpu": "h100", "gpus": 1}, "training": {"micro_batch_size": 3}},
        {"hardware": {"gpu": "h100", "gpus": 8}, "layout": {"pipeline_parallel": 8, "tensor_parallel": 1}},
    ],
)
async def test_a_layout_that_does_not_divide(client: httpx.AsyncClient, parts: dict[str, Any]):
    assert all(pointers(await refused(client, "/plan/train", train(**parts))))


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        ("/plan/train", train(training={"sequence_length": -1}), "/training/sequence_length"),
        ("/plan/train", train(training={"sequence_length": 10**12}), "/training/sequence_length"),
        ("/plan/train", train(training={"tokens": 1e300}), "/training/tokens"),
        ("/plan/train", train(hardware={"gpu": "h100", "gpus": 10**9}), "/hardware/gpus"),
        ("/plan/train", train(hardware={"gpu": "h100", "used_bytes": 10**14}), "/hardware/used_bytes"),
        ("/plan/train", train(model={"parameters": 1e40}), "/model/parameters"),
        ("/plan/infer", infer(serving={"concurrency": 0}), "/serving/concurrency"),
        ("/plan/infer", infer(serving={"requests_per_second": 5e-324}), "/serving/requests_per_second"),
        ("/plan/infer", infer(serving={"gpu_memory_utilization": 1.5}), "/serving/gpu_memory_utilization"),
        ("/quantize", {"model": "llama-3.2-1b", "scheme": "nf4", "block_size": 0}, "/block_size"),
        ("/quantize", {"model": "llama-3.2-1b", "scheme": "nf4", "block_size": 65}, "/block_size"),
        ("/quantize", {"model": "llama-3.2-1b", "scheme": "nf4", "seed": -1}, "/seed"),
    ],
)
async def test_negative_and_absurd_numbers(client: httpx.AsyncClient, path: str, body: Any, pointer: str):
    assert pointers(await refused(client, path, body)) == [pointer]


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
async def test_a_number_that_is_none(client: httpx.AsyncClient, number: bytes):
    body = b'{"model": "llama-3.2-1b", "training": {"tokens": [1, ' + number + b"]}}"
    assert pointers(await refused(client, "/plan/train", body, 400)) == ["/training/tokens/1"]


@pytest.mark.parametrize("body", [b"NaN", b"-Infinity", b" 1e999 "])
async def test_a_body_that_is_itself_no_number(client: httpx.AsyncClient, body: bytes):
    assert pointers(await refused(client, "/plan/train", body, 400)) == [""]


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": ',
        b"{'model': 1}",
        b'{"model": "a", "model": "b"}',
        b'{"model": "\xff"}',
        b'{"model": "\\ud800"}',
        b'{"model": "\\u0000"}',
        b"[" * 100_000,
        b"1" * 10_000,
        b"\xef\xbb\xbf{}",
    ],
)
async def test_broken_json(client: httpx.AsyncClient, body: bytes):
    problem = await refused(client, "/plan/train", body, 400)
    assert problem["code"] == "malformed-request"


def many_members(count: int, last: bytes) -> bytes:
    """Return an object with so many members of different names, and then one more."""
    return b"{" + b"".join(b'"%d":1,' % number for number in range(count)) + last + b"}"


@pytest.mark.parametrize(
    "body",
    [
        # A look through all names for each of them would take minutes, and nobody else would be answered.
        many_members(90_000, b'"89999":1'),
        # A pointer for each of the numbers would take 30 GB.
        b'{"wrong":NaN,"' + b"a" * 500_000 + b'":[' + b"1," * 60_000 + b"1]}",
    ],
    ids=["repeated", "not finite"],
)
async def test_a_large_body_is_refused_without_much_work(client: httpx.AsyncClient, body: bytes):
    assert (await refused(client, "/plan/train", body, 400))["code"] == "malformed-request"


@pytest.mark.parametrize(("members", "status"), [(MOST_MEMBERS, 422), (MOST_MEMBERS + 1, 400)])
@pytest.mark.parametrize("part", ["", "layout"])
async def test_an_object_of_more_members_than_any_request_has(
    client: httpx.AsyncClient, part: str, members: int, status: int
):
    unknown = {f"field{number}": 1 for number in range(members)}
    problem = await refused(client, "/plan/train", {part: unknown} if part else unknown, status)
    if status == 400:
        assert problem["errors"] == [
            {"pointer": f"/{part}".rstrip("/"), "detail": f"An object holds more than {MOST_MEMBERS} members."}
        ]


async def test_a_config_may_have_an_object_with_a_member_for_each_matrix(client: httpx.AsyncClient):
    by_matrix = {f"model.layers.{number}.mlp": {} for number in range(MOST_MEMBERS + 1)}
    config = {**TINY_CONFIG, "quantization_config": {"quant_method": "modelopt", "quantized_layers": by_matrix}}
    # Read, and refused for something else.
    problem = await refused(client, "/plan/infer", infer(model={"config": config}, hardware={}))
    assert {pointer.partition("/")[2].partition("/")[0] for pointer in pointers(problem)} == {"hardware"}


@pytest.mark.parametrize(("encoding", "status"), [("gzip", 415), ("br, gzip", 415), ("identity", 422)])
async def test_a_compressed_body_is_refused_as_that(client: httpx.AsyncClient, encoding: str, status: int):
    headers = {"content-type": "application/json", "content-encoding": encoding}
    response = await client.post("/plan/train", content=json.dumps(train(hardware={})), headers=headers)
    assert response.status_code == status
    if status == 415:
        assert response.json()["detail"].startswith(f"The body is declared as compressed with '{encoding}'")


@pytest.mark.parametrize(("entries", "status"), [(MOST_JSON_ENTRIES, 422), (MOST_JSON_ENTRIES + 1, 400)])
async def test_a_body_of_more_entries_than_are_read(client: httpx.AsyncClient, entries: int, status: int):
    await refused(client, "/plan/train", b"[" + b",".join([b"1"] * entries) + b"]", status)


async def test_a_text_of_many_commas_is_one_entry(client: httpx.AsyncClient):
    body = b'{"model": "' + b"," * 2 * MOST_JSON_ENTRIES + b'"}'
    assert "/model" in pointers(await refused(client, "/models/describe", body))


async def test_of_very_many_errors_the_first_are_told_and_all_are_counted(client: httpx.AsyncClient):
    problem = await refused(client, "/models/describe", many_members(MOST_FIELD_ERRORS, b'"model":"llama-3.2-1b"'))
    assert len(problem["errors"]) == MOST_FIELD_ERRORS
    assert f"{MOST_FIELD_ERRORS - 1} more under 'errors'" in problem["detail"]
    problem = await refused(client, "/models/describe", many_members(MOST_FIELD_ERRORS, b'"x":1'))
    assert len(problem["errors"]) == MOST_FIELD_ERRORS
    # All unknown fields, and the model that is missing.
    assert f"{MOST_FIELD_ERRORS + 1} more, the first {MOST_FIELD_ERRORS} of all under 'errors'" in problem["detail"]


async def test_what_is_wrong_is_told_in_one_sentence_with_its_pointer(client: httpx.AsyncClient):
    problem = await refused(client, "/models/describe", b"{}")
    assert problem["detail"] == "/model is missing."
    unknown = await client.get("/models", params={"serch": "llama"})
    assert unknown.json()["detail"] == "/serch in the query is not a parameter here; did you mean search?"


async def test_an_empty_body(client: httpx.AsyncClient):
    assert pointers(await refused(client, "/plan/train", b"")) == [""]


@pytest.mark.parametrize("declared", ["text/plain", "application/x-www-form-urlencoded", "application/xml", ""])
async def test_a_body_that_is_not_declared_as_json(client: httpx.AsyncClient, declared: str):
    response = await client.post("/plan/train", content=b"{}", headers={"content-type": declared})
    assert response.status_code == 415
    assert response.json()["code"] == "unsupported-media-type"


class Endless(httpx.AsyncByteStream):
    """A body of 100 MB that counts what is read of it."""

    def __init__(self) -> None:
        self.sent_bytes = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self.sent_bytes < 100_000_000:
            self.sent_bytes += 2**16
            yield b" " * 2**16


@pytest.mark.parametrize("length", [{"content-length": "100000000"}, {}])
async def test_a_body_of_100_mb_is_refused_before_it_is_read(client: httpx.AsyncClient, length: dict[str, str]):
    body = Endless()
    request = client.build_request("POST", "/plan/train", headers={**JSON, **length})
    request.stream = body
    response = await client.send(request)
    assert response.status_code == 413
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["connection"] == "close"
    # Nothing where the length is declared, else what fills the limit of 16 MiB and one chunk more.
    assert body.sent_bytes <= (0 if length else 2**24 + 2**16)


@pytest.mark.parametrize(
    "path", ["/plans/%00", "/plans?model=%00", "/models/a%00b", "/jobs/%00/cancel", "/hardware/h100%0A", "/models/%7F"]
)
async def test_an_address_with_a_character_that_is_none(client: httpx.AsyncClient, path: str):
    assert (await client.get(path)).status_code == 400


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (infer(objective="latency", serving={"engine": "transformers"}), "/objective"),
    ],
)
async def test_what_is_not_there_yet_is_said_to_be_missing(client: httpx.AsyncClient, body: Any, pointer: str):
    path = "/plan/train" if "training" in body else "/plan/infer"
    assert pointers(await refused(client, path, body, 501)) == [pointer]


@pytest.mark.parametrize("path", [256 * "x", f"a/{300 * 'y'}/b", "nul\0inside", "half \ud800", 3_000 * "a/", "..", "/"])
@pytest.mark.parametrize("route", ["/plan/train", "/plan/infer", "/models/describe", "/quantize"])
async def test_a_path_that_no_system_opens_is_refused_where_roots_are_set(
    client: httpx.AsyncClient, route: str, path: str
):
    model = {"path": path}
    question = {
        "/plan/train": train(model=model),
        "/plan/infer": infer(model=model),
        "/models/describe": {"model": model},
        "/quantize": {"model": {"config": TINY_CONFIG}, "scheme": "nf4", "weights": model},
    }[route]
    answer = await client.post(route, content=json.dumps(question), headers={"content-type": "application/json"})
    assert 400 <= answer.status_code < 500, answer.text


async def test_a_query_parameter_is_given_once(client: httpx.AsyncClient):
    problem = (await client.get("/plans?limit=3&limit=4")).json()
    assert (problem["status"], problem["detail"]) == (422, "/limit in the query is given twice.")


async def test_a_path_that_leads_nowhere_is_answered_with_the_nearest_and_the_list(client: httpx.AsyncClient):
    detail = (await client.get("/plan")).json()["detail"]
    assert detail.startswith("Nothing is at /plan. Nearest: /plans")
    assert detail.endswith("GET /openapi.json lists all paths.")


async def test_a_method_that_a_path_lacks_is_answered_with_those_it_has(client: httpx.AsyncClient):
    assert (await client.put("/plans")).json()["detail"] == "PUT is not answered at /plans; what is: GET, HEAD."


@pytest.mark.parametrize(
    ("part", "listed"), [({"model": "zzz"}, "GET /models"), ({"hardware": {"gpu": "any", "gpus": 1}}, "GET /hardware")]
)
async def test_a_name_like_no_other_is_answered_with_where_all_stand(
    client: httpx.AsyncClient, part: dict[str, Any], listed: str
):
    assert listed in (await refused(client, "/plan/train", {**train(), **part}))["detail"]


async def test_a_number_of_too_many_digits_is_said_to_be_that(client: httpx.AsyncClient):
    body = b'{"model": "llama-3.2-1b", "hardware": {"gpu": "h100", "gpus": ' + b"9" * 5000 + b"}}"
    problem = await refused(client, "/plan/train", body, 400)
    assert problem["detail"] == "The body is not JSON that can be read: a whole number has more than 4,300 digits."


@pytest.mark.parametrize(
    ("part", "pointer"),
    [({}, "/deadline_seconds"), ({"deadline_seconds": 3600}, "/training/tokens")],
)
async def test_a_deadline_lacks_what_is_pointed_at(client: httpx.AsyncClient, part: dict[str, Any], pointer: str):
    assert pointers(await refused(client, "/plan/train", {**train(), "objective": "deadline", **part})) == [pointer]


@pytest.mark.parametrize(
    ("path", "detail"),
    [
        ("/plans?limit=0", "/limit in the query must be at least 1."),
        ("/plans?limit=ten", "/limit in the query must be a whole number."),
        ("/plans?fits=maybe", "/fits in the query must be true or false."),
        ("/plans?verdict=perhaps", "/verdict in the query must be 'fits', 'tight' or 'no'."),
        ("/accuracy?format=text", "/format in the query must be 'json' or 'csv'."),
    ],
)
async def test_a_parameter_is_told_as_a_field_is(client: httpx.AsyncClient, path: str, detail: str):
    assert (await client.get(path)).json()["detail"] == detail


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ({"pipeline_layout": "t|tL"}, "the embedding (E) is missing"),
        ({"pipeline_layout": "Et||tL"}, "stage 1 of 3"),
        ({"pipeline_layout": "halves"}, "it may be even"),
        ({"pipeline_layout": "t" * 4097}, "4096 characters"),
        # Three of four layers are listed; four and the loss are not twice as many; by-compute is another framework's.
        ({"pipeline_parallel": 2, "pipeline_layout": "Ett|tL"}, "3 layers in 2 stages"),
        ({"pipeline_parallel": 2, "pipeline_layout": "account-for-loss"}, "4 layers cannot be divided into 2 stages"),
        ({"pipeline_parallel": 2, "pipeline_layout": "by-compute"}, "a list of blocks, not by-compute"),
    ],
)
async def test_a_pipeline_that_cannot_be_divided_so(client: httpx.AsyncClient, layout: dict[str, Any], words: str):
    body = train(framework="megatron", layout=layout, hardware={"gpu": "h100-sxm-80gb", "gpus": 2})
    problem = await refused(client, "/plan/train", body)
    assert pointers(problem) == ["/layout/pipeline_layout"]
    assert words in json.dumps(problem)
