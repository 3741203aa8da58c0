"""Entity tags, 304, who may keep an answer, and compression."""

from __future__ import annotations

import httpx
import pytest

from tests.api.questions import train


async def a_plan(client: httpx.AsyncClient) -> str:
    plan_id: str = (await client.post("/plan/train", json=train(framework="fsdp2"))).json()["plan_id"]
    return plan_id


@pytest.mark.parametrize("rest", ["", "?format=text", "/question", "/artifacts/torchrun"])
async def test_a_stored_plan_is_sent_once(client: httpx.AsyncClient, rest: str):
    address = f"/plans/{await a_plan(client)}{rest}"
    first = await client.get(address)
    tag = first.headers["etag"]
    assert tag.startswith('"')
    again = await client.get(address, headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == tag
    assert "content-length" not in again.headers
    other = await client.get(address, headers={"if-none-match": '"another"'})
    assert (other.status_code, other.content) == (200, first.content)


@pytest.mark.parametrize("path", ["/models", "/models/llama-3.1-8b", "/hardware", "/hardware/h100", "/formats", "/"])
async def test_the_catalogue_and_the_pages_are_sent_once(client: httpx.AsyncClient, path: str):
    tag = (await client.get(path)).headers["etag"]
    assert (await client.get(path, headers={"if-none-match": tag})).status_code == 304
    assert (await client.head(path, headers={"if-none-match": tag})).status_code == 304


async def test_a_page_that_is_known_keeps_its_own_policy(client: httpx.AsyncClient):
    # A browser takes over the headers of a 304: with another policy the copy would load no script and no style.
    first = await client.get("/")
    again = await client.get("/", headers={"if-none-match": first.headers["etag"]})
    assert again.status_code == 304
    for name in ("content-security-policy", "cache-control", "content-type"):
        assert again.headers[name] == first.headers[name]


@pytest.mark.parametrize("known", ['"a", {tag}', "W/{tag}", "*"])
async def test_one_of_several_tags_weak_or_any_will_do(client: httpx.AsyncClient, known: str):
    tag = (await client.get("/formats")).headers["etag"]
    assert (await client.get("/formats", headers={"if-none-match": known.format(tag=tag)})).status_code == 304


async def test_a_job_has_another_tag_once_it_changes(client: httpx.AsyncClient):
    queued = await client.post("/plan/train", json=train(framework="fsdp2", validate="count"))
    address = f"/jobs/{queued.json()['validation']['job_id']}"
    tag = (await client.get(address)).headers["etag"]
    await client.post(f"{address}/cancel")
    changed = await client.get(address, headers={"if-none-match": tag})
    assert changed.status_code == 200
    assert changed.headers["etag"] != tag


async def test_each_format_and_each_encoding_has_a_tag_of_its_own(client: httpx.AsyncClient):
    address = f"/plans/{await a_plan(client)}"
    accepts = [
        {"accept": accept, "accept-encoding": encoding}
        for accept in ("application/json", "text/plain")
        for encoding in ("identity", "gzip")
    ]
    answers = [await client.get(address, headers=headers) for headers in accepts]
    assert len({answer.headers["etag"] for answer in answers}) == 4
    for answer in answers:
        varies = {name.strip().lower() for name in answer.headers["vary"].split(",")}
        assert varies >= {"accept", "accept-encoding", "authorization"}


async def test_only_its_client_keeps_a_plan_and_asks_whether_it_still_may(client: httpx.AsyncClient):
    answer = await client.get(f"/plans/{await a_plan(client)}")
    assert answer.headers["cache-control"] == "private, no-cache"


@pytest.mark.parametrize("path", ["/plans", "/jobs", "/healthz", "/plans/none"])
async def test_what_changes_and_what_is_refused_is_not_kept(client: httpx.AsyncClient, path: str):
    headers = (await client.get(path)).headers
    assert headers["cache-control"] == "no-store"
    assert "etag" not in headers


async def test_large_answers_are_compressed_for_who_takes_it(client: httpx.AsyncClient):
    plain = await client.post("/plan/train", json=train(), headers={"accept-encoding": "identity"})
    packed = await client.post("/plan/train", json=train(), headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content
    # 25 KB of JSON become a third at most.
    assert int(packed.headers["content-length"]) < len(plain.content) / 3
    assert (await client.get("/healthz", headers={"accept-encoding": "gzip"})).headers.get("content-encoding") is None
