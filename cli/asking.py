"""Who answers a command: a service, or this process by itself. Answers are JSON values either way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from plimsoll.cli.screen import ShowProgress

if TYPE_CHECKING:
    from plimsoll.service.persistence.records import PlanKind
    from plimsoll.service.requests.training import ValidationLevel

    Kind: TypeAlias = PlanKind

Json: TypeAlias = Mapping[str, Any]


class NoAnswer(Exception):
    """A question without an answer: why, and the fields at fault as (pointer, detail)."""

    def __init__(self, message: str, fields: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.fields = tuple(fields)


class Answering(Protocol):
    """What commands ask; each method raises NoAnswer."""

    def plan(self, kind: Kind, request: Json, show: ShowProgress) -> dict[str, Any]:
        """Return a plan's body; where the request asks for a proof, `validation` is its finished job."""

    def stored_plan(self, plan_id: str) -> dict[str, Any]:
        """Return the body of a plan that was made before."""

    def validate(self, plan_id: str, level: ValidationLevel, show: ShowProgress) -> dict[str, Any]:
        """Return the finished job that proved a plan."""

    def quantize(self, request: Json, show: ShowProgress) -> dict[str, Any]:
        """Return `{"estimate", "job"}`, the job finished."""

    def models(self, search: str | None = None) -> dict[str, Any]:
        """Return the catalogue's models, or those that a search finds."""

    def describe(self, model: str | Json) -> dict[str, Any]:
        """Return the description of a model that a request may name."""

    def hardware(self, search: str | None = None) -> dict[str, Any]:
        """Return the catalogue's GPUs and clusters, or those that a search finds."""

    def gpu(self, name: str) -> dict[str, Any]:
        """Return one GPU's figures."""

    def accuracy(self) -> dict[str, Any]:
        """Return how far the predictions on record were off."""

    def accuracy_csv(self) -> str:
        """Return every single measurement on record as CSV."""


@contextmanager
def answering(url: str | None) -> Iterator[Answering]:
    """Yield who answers: the service at an address, or this process where there is none."""
    if url is None:
        from plimsoll.cli.local import Local

        yield Local()
        return
    from plimsoll.cli.remote import Remote

    with Remote(url) as service:
        yield service
