"""Endpoints whose dependencies are resolved before the framework sees them.

FastAPI solves each dependency of an endpoint as if it were one itself, with every request, which takes as long as a
small endpoint. Here an endpoint's parameters are its own and those of its dependencies; the contract lists them alike.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args, get_type_hints

from fastapi.params import Depends
from starlette.requests import Request

Endpoint: TypeAlias = Callable[..., Any]

# No parameter of ours, nor any on the wire, is called that.
_REQUEST = "http_request_itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dependency:
    """What gives one parameter of an endpoint, and the parameters that it takes, each with its name in the request."""

    give: Callable[..., Awaitable[Any]]
    takes: tuple[tuple[str, str], ...]

    async def value(self, given: Mapping[str, Any]) -> Any:
        return await self.give(**{name: given[known] for name, known in self.takes})


def flattened(endpoint: Endpoint) -> Endpoint:
    """Return an endpoint that takes its dependencies' parameters in their place; a stream of events stays as it is."""
    if not inspect.iscoroutinefunction(endpoint):
        return endpoint
    own: dict[str, inspect.Parameter] = {}
    taken: dict[str, inspect.Parameter] = {}
    dependencies: dict[str, _Dependency] = {}
    for name, parameter in _parameters(endpoint).items():
        give = _dependency(parameter.annotation)
        if give is None:
            own[name] = parameter
            continue
        known = {each: _REQUEST if one.annotation is Request else each for each, one in _parameters(give).items()}
        taken |= {known[each]: one.replace(name=known[each]) for each, one in _parameters(give).items()}
        dependencies[name] = _Dependency(give=give, takes=tuple(known.items()))
    if not dependencies:
        return endpoint
    if shared := own.keys() & taken.keys():
        raise TypeError(f"{endpoint.__name__} and what it depends on both have a parameter {shared.pop()!r}.")

    @functools.wraps(endpoint)
    async def flat(**given: Any) -> Any:
        values = {name: await dependency.value(given) for name, dependency in dependencies.items()}
        return await endpoint(**{name: given[name] for name in own}, **values)

    returned = get_type_hints(endpoint, include_extras=True).get("return", inspect.Signature.empty)
    signature = inspect.Signature([*own.values(), *taken.values()], return_annotation=returned)
    flat.__signature__ = signature  # type: ignore[attr-defined]
    return flat


def _parameters(called: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function by name, with the types that their annotations name."""
    hints = get_type_hints(called, include_extras=True)
    return {
        name: parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(called).parameters.items()
    }


def _dependency(annotation: Any) -> Callable[..., Awaitable[Any]] | None:
    """Return what a parameter depends on, as `Annotated` has it."""
    found = next((each for each in get_args(annotation)[1:] if isinstance(each, Depends)), None)
    return None if found is None else found.dependency
