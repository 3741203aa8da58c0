"""The web pages, and the files that they load.

The pages hold no data: their scripts ask the public API for it. Of them the contract (`openapi.yaml`), which is for
programs, names only the first. A page ignores its query: the scripts read it there, and fill the form from it.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from fastapi import APIRouter, Header
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response

from plimsoll.api.compression import accepts_gzip
from plimsoll.api.pages.assets import PREFIX, assets, gzipped
from plimsoll.api.pages.rendering import page
from plimsoll.api.problems import problem_responses

router = APIRouter(tags=["pages"])

# Nothing inline and nothing from elsewhere: what a model is called can never become a script here.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cache-control": "no-cache",
}
FOR_GOOD = "public, max-age=31536000, immutable"
# During an upgrade a page of one version may ask a replica of another: it gets that one's file, and keeps it not.
FOR_NOW = "no-store"

SECTIONS = frozenset({"train", "serve", "plans", "jobs", "compare", "accuracy"})


@router.get("/", summary="The web page", response_class=HTMLResponse, responses=problem_responses(400, 500))
@router.get("/ui", summary="The web page", response_class=HTMLResponse, responses=problem_responses(400, 500))
async def train_page() -> HTMLResponse:
    """Return the page that plans a training job."""
    return await _page("train")


@router.get("/ui/{section}", include_in_schema=False, response_class=HTMLResponse)
async def section_page(section: str) -> HTMLResponse:
    """Return one of the other pages."""
    if section not in SECTIONS:
        raise HTTPException(HTTPStatus.NOT_FOUND, f"There is no page {section!r}.")
    return await _page(section)


@router.get("/docs", include_in_schema=False, response_class=HTMLResponse)
async def docs_page() -> HTMLResponse:
    """Return the API's reference, to try out."""
    return await _page("docs")


@router.get(PREFIX + "/{digest}/{name}", include_in_schema=False)
async def asset(digest: str, name: str, accept_encoding: str = Header(default="")) -> Response:
    """Return a file that a page loads."""
    known = await asyncio.to_thread(assets)
    found = known.by_name.get(name)
    if found is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, f"There is no file {name!r}.")
    headers = {
        "cache-control": FOR_GOOD if digest == known.digest else FOR_NOW,
        "vary": "accept-encoding",
    }
    if not accepts_gzip(accept_encoding):
        return Response(found.content, media_type=found.media_type, headers=headers)
    compressed = await asyncio.to_thread(gzipped, name)
    return Response(compressed, media_type=found.media_type, headers={**headers, "content-encoding": "gzip"})


async def _page(name: str) -> HTMLResponse:
    # Off the loop: the first one reads the templates and the files.
    return HTMLResponse(await asyncio.to_thread(page, name), headers=PAGE_HEADERS)
