"""The web pages: what they are, what they load, and what they must never do."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from typing import Any, get_args

import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel

from plimsoll.api.app import create_app
from plimsoll.api.pages.assets import assets
from plimsoll.service.ground.settings import Settings
from plimsoll.service.requests.jobs import QuantizeRequest
from plimsoll.service.requests.serving import InferRequest
from plimsoll.service.requests.training import TrainRequest

PAGES = ("/", "/ui", "/ui/train", "/ui/serve", "/ui/plans", "/ui/jobs", "/ui/compare", "/ui/accuracy", "/docs")


class Page(HTMLParser):
    """What a page holds: its tags with their attributes, its fields without a label, the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.unlabelled: list[str] = []
        self.inline = ""
        self._labels = 0
        self._within = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._labels += tag == "label"
        self._within = tag
        if tag in {"input", "select", "textarea"} and not self._labels:
            self.unlabelled.append(dict(attrs).get("name") or "?")

    def handle_endtag(self, tag: str) -> None:
        self._labels -= tag == "label"
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within in {"script", "style"}:
            self.inline += data.strip()

    def values(self, attribute: str) -> list[str]:
        return [value for _, attributes in self.tags if (value := attributes.get(attribute))]


@pytest.fixture(scope="module")
def closed_app() -> FastAPI:
    """Return an application that never opened its database: pages need none."""
    return create_app(Settings())


@pytest.fixture
async def visitor(closed_app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of the pages."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=closed_app), base_url="http://localhost") as opened:
        yield opened


async def _page(visitor: httpx.AsyncClient, path: str) -> Page:
    response = await visitor.get(path)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    return Page(response.text)


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_holds_no_script_and_no_style_of_its_own(visitor: httpx.AsyncClient, path: str):
    page = await _page(visitor, path)
    assert page.inline == ""
    assert page.values("style") == []
    assert [name for _, attributes in page.tags for name in attributes if name.startswith("on")] == []


@pytest.mark.parametrize("path", PAGES)
async def test_the_policy_allows_nothing_inline_and_nothing_from_elsewhere(visitor: httpx.AsyncClient, path: str):
    policy = (await visitor.get(path)).headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert "http" not in policy


@pytest.mark.parametrize("path", PAGES)
async def test_all_that_a_page_names_is_served_from_here(visitor: httpx.AsyncClient, path: str):
    page = await _page(visitor, path)
    named = [address for address in page.values("src") + page.values("href") if not address.startswith(("#", "data:"))]
    assert [address for address in named if not address.startswith("/") or address.startswith("//")] == []
    for address in named:
        if address not in {"/readyz", "/metrics"}:  # They need the database.
            assert (await visitor.get(address)).status_code == 200, address


@pytest.mark.parametrize("path", PAGES)
async def test_every_field_has_a_label(visitor: httpx.AsyncClient, path: str):
    assert (await _page(visitor, path)).unlabelled == []


@pytest.mark.parametrize("path", PAGES)
async def test_the_navigation_says_which_page_this_is(visitor: httpx.AsyncClient, path: str):
    assert (await _page(visitor, path)).values("aria-current") == ["page"]


@pytest.mark.parametrize(
    ("path", "request_type", "elsewhere"),
    [
        ("/", TrainRequest, {"model.config"}),
        ("/ui/serve", InferRequest, {"model.config"}),
        # The page has three forms: the plan and the level of a validation, and the filters of the list.
        ("/ui/jobs", QuantizeRequest, {"plan_id", "level", "kind", "state", "model.config"}),
    ],
)
async def test_every_field_is_one_of_the_request(
    visitor: httpx.AsyncClient, path: str, request_type: type[BaseModel], elsewhere: set[str]
):
    page = await _page(visitor, path)
    names = {name for tag, attributes in page.tags if tag != "meta" and (name := attributes.get("name"))}
    # Every page has the field for the API key, which goes into no request's body.
    assert {name for name in names - elsewhere - {"key"} if not _is_field(request_type, name.split("."))} == set()


def _is_field(request_type: type[BaseModel], steps: list[str]) -> bool:
    first, *rest = steps
    if first not in request_type.model_fields:
        return False
    if not rest:
        return True
    return any(_is_field(part, rest) for part in _parts(request_type.model_fields[first].annotation))


def _parts(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [part for inner in get_args(annotation) for part in _parts(inner)]


async def test_what_the_address_says_never_comes_back_in_the_page(visitor: httpx.AsyncClient):
    hostile = await visitor.get("/", params={"model": "</script><script>alert(1)</script>"})
    assert hostile.text == (await visitor.get("/")).text


async def test_a_page_that_is_not_there_is_not_found(visitor: httpx.AsyncClient):
    assert (await visitor.get("/ui/nothing")).status_code == 404


async def test_a_file_is_kept_for_good_under_the_digest_of_its_content(visitor: httpx.AsyncClient):
    response = await visitor.get(assets().url("page.css"))
    assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert response.headers["content-type"] == "text/css; charset=utf-8"
    assert response.content == assets().by_name["page.css"].content


async def test_a_file_of_another_version_is_answered_and_not_kept(visitor: httpx.AsyncClient):
    response = await visitor.get("/assets/0000000000000000/page.css")
    assert response.status_code == 200
    assert response.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("name", ["nothing.js", "..%2fassets.py"])
async def test_only_the_known_files_are_served(visitor: httpx.AsyncClient, name: str):
    assert (await visitor.get(f"/assets/{assets().digest}/{name}")).status_code == 404


async def test_files_go_compressed_to_those_who_take_it(visitor: httpx.AsyncClient):
    address = assets().url("train.js")
    plain = await visitor.get(address, headers={"accept-encoding": "identity"})
    compressed = await visitor.get(address, headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert compressed.headers["content-encoding"] == "gzip"
    assert compressed.headers["vary"] == "accept-encoding"
    assert compressed.content == plain.content


def test_everything_together_stays_under_a_megabyte_and_a_half_compressed():
    total_bytes = sum(len(gzip.compress(asset.content)) for asset in assets().by_name.values())
    assert total_bytes < 1_500_000


def test_a_file_that_is_not_there_has_no_address():
    with pytest.raises(KeyError):
        assets().url("nothing.js")
