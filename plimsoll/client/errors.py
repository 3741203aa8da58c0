"""What a service refuses or cannot do, as exceptions that carry its problem document."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.service.ground.problems import Problem


class ClientError(Exception):
    """A call has no answer."""


class Unreachable(ClientError):
    """No service answered: nothing listens there, or the connection broke."""


class UnexpectedAnswer(ClientError):
    """Something answered, and not as this service does; another program may listen there."""


class Refused(ClientError):
    """The service refused, and says why in `problem`."""

    def __init__(self, problem: Problem, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.retry_after_seconds = retry_after_seconds
        """How long the service asks to wait; None where waiting helps nothing."""


class WrongQuestion(Refused):
    """The request makes no sense; `problem.errors` points at its fields."""


class NotAllowed(Refused):
    """The key is missing, out of force or too narrow, or a path lies outside the allowed folders."""


class NotFound(Refused):
    """There is no such plan, job, model, GPU or file."""


class Conflict(Refused):
    """The state does not allow it."""


class NotYetAvailable(Refused):
    """This version of the service does not answer that."""


class TryLater(Refused):
    """Too many requests or jobs, or the database is away; `retry_after_seconds` where the service says when."""


class ServiceFailed(Refused):
    """The service, or one that it depends on, is at fault."""


_BY_STATUS: Mapping[int, type[Refused]] = {
    400: WrongQuestion,
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    408: TryLater,
    409: Conflict,
    413: WrongQuestion,
    415: WrongQuestion,
    422: WrongQuestion,
    429: TryLater,
    501: NotYetAvailable,
    503: TryLater,
}


def refusal(problem: Problem, *, retry_after_seconds: float | None) -> Refused:
    """Return the exception of a problem document."""
    otherwise = WrongQuestion if problem.status < 500 else ServiceFailed
    return _BY_STATUS.get(problem.status, otherwise)(problem, retry_after_seconds=retry_after_seconds)
