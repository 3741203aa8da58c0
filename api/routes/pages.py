"""`/` and `/ui`: one small page that says where everything is."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse

from api.problems import problem_responses
from api.strict_json import StrictRoute
from planners import PLANNER_VERSION

router = APIRouter(tags=["pages"], route_class=StrictRoute, default_response_class=HTMLResponse)

# No script and nothing from elsewhere: the page must work in a closed network.
CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Plimsoll</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
td {{ padding: .1rem 1rem .1rem 0; vertical-align: top }}
</style>
<h1>Plimsoll {version}</h1>
<p>Plans LLM training jobs, sizes inference KV caches, and proves its plans. This is the service's API; there are no
interactive pages yet.</p>
<p><a href="/docs">Documentation to try out</a> · <a href="/openapi.json">OpenAPI</a> · <a href="/readyz">readiness</a>
· <a href="/metrics">metrics</a></p>
<table>
{rows}
</table>
</html>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteLine:
    """A route as the page lists it."""

    method: str
    path: str
    summary: str


@router.get("/", summary="Where everything is", responses=problem_responses(400, 422, 500))
@router.get("/ui", summary="Where everything is", responses=problem_responses(400, 422, 500))
async def page(request: Request) -> HTMLResponse:
    """A page that lists the routes."""
    lines: tuple[RouteLine, ...] = request.app.state.route_lines
    rows = "\n".join(
        f"<tr><td><code>{line.method} {escape(line.path)}</code><td>{escape(line.summary)}" for line in lines
    )
    content = _PAGE.format(version=escape(PLANNER_VERSION), rows=rows)
    return HTMLResponse(content, headers={"content-security-policy": CONTENT_SECURITY_POLICY})
