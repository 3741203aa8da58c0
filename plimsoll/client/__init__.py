"""A typed client of the HTTP API, synchronous and asynchronous.

from plimsoll.client import Client

with Client("http://127.0.0.1:8000") as service:
    plan = service.plan_train({"model": "llama-3.1-8b", ...})
    print(plan.verdict, plan.plan.memory.peak_bytes)
"""

from plimsoll.client.async_client import AsyncClient
from plimsoll.client.client import Client
from plimsoll.client.errors import (
    ClientError,
    Conflict,
    NotAllowed,
    NotFound,
    NotYetAvailable,
    Refused,
    ServiceFailed,
    TryLater,
    UnexpectedAnswer,
    Unreachable,
    WrongQuestion,
)
from plimsoll.client.retries import Retries
from plimsoll.client.waiting import JobUnfinished

__all__ = [
    "AsyncClient",
    "Client",
    "ClientError",
    "Conflict",
    "JobUnfinished",
    "NotAllowed",
    "NotFound",
    "NotYetAvailable",
    "Refused",
    "Retries",
    "ServiceFailed",
    "TryLater",
    "UnexpectedAnswer",
    "Unreachable",
    "WrongQuestion",
]
