"""Which route answers: looked up by method and first step of the path, where the framework tries all one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send


class RouteTable(BaseRoute):
    """Stands before all routes and finds most of them; what it does not find, the framework looks for and refuses."""

    def __init__(self, routes: Iterable[APIRoute]) -> None:
        self._routes: dict[tuple[str, str], list[APIRoute]] = defaultdict(list)
        for route in routes:
            for method in route.methods or ():
                self._routes[method, _first_step(route.path)].append(route)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether a route answers a request, and what the framework is to know of it."""
        if scope["type"] == "http":
            for route in self._routes.get((scope["method"], _first_step(scope["path"])), ()):
                match, found = route.matches(scope)
                if match is Match.FULL:
                    return match, found
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the route that was found answer."""
        await scope["route"].app(scope, receive, send)


def _first_step(path: str) -> str:
    return path[1:].partition("/")[0]
