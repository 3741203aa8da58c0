"""From calls to methods: both clients have one for every call, with its parameters, types and words."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from plimsoll.client.calls import Call

Given = ParamSpec("Given")
Value = TypeVar("Value")


class Waiting(Protocol):
    """A client that waits for each answer."""

    def send(self, call: Call[Value]) -> Value:
        """Return the answer to a call."""


class Awaiting(Protocol):
    """A client whose answers are awaited."""

    async def send(self, call: Call[Value]) -> Value:
        """Return the answer to a call."""


def waiting(call: Callable[Given, Call[Value]]) -> Callable[Concatenate[Waiting, Given], Value]:
    """Return the method that sends a call and waits for its answer."""

    @wraps(call)
    def method(self: Waiting, /, *given: Given.args, **named: Given.kwargs) -> Value:
        return self.send(call(*given, **named))

    return _signed(method, call)


def awaiting(call: Callable[Given, Call[Value]]) -> Callable[Concatenate[Awaiting, Given], Coroutine[Any, Any, Value]]:
    """Return the method that sends a call, to be awaited."""

    @wraps(call)
    async def method(self: Awaiting, /, *given: Given.args, **named: Given.kwargs) -> Value:
        return await self.send(call(*given, **named))

    return _signed(method, call)


Method = TypeVar("Method", bound=Callable[..., Any])


def _signed(method: Method, call: Callable[..., Any]) -> Method:
    """Let a method show the call's parameters after its own self, to whoever asks for help."""
    signature = inspect.signature(call)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    shown = [own, *signature.parameters.values()]
    # The call's answer is not the method's.
    method.__signature__ = signature.replace(parameters=shown, return_annotation=inspect.Signature.empty)  # type: ignore[attr-defined]
    return method
