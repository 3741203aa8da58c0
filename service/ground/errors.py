"""What the service refuses, or cannot do just now.

They continue `planners.ground.errors`: each carries a stable `code`, and
`api/errors.py` decides which HTTP status a code becomes.
"""

from __future__ import annotations

from plimsoll.planners.ground.errors import InvalidQuestion, PlimsollError
from plimsoll.planners.ground.figures import figure


class PlanNotFound(PlimsollError):
    """No stored plan has this id."""

    code = "plan-not-found"

    def __init__(self, plan_id: str) -> None:
        super().__init__(f"No plan has the id {plan_id[:100]!r}.")
        self.plan_id = plan_id


class CalibrationNotFound(PlimsollError):
    """A GPU was not calibrated."""

    code = "calibration-not-found"

    def __init__(self, gpu: str) -> None:
        super().__init__(f"{gpu} was not calibrated; plans on it rest on the shipped efficiencies.")
        self.gpu = gpu


class MeasurementNotFound(PlimsollError):
    """No measurement has this number."""

    code = "measurement-not-found"

    def __init__(self, measurement_id: int) -> None:
        super().__init__(f"No measurement has the number {measurement_id}.")
        self.measurement_id = measurement_id


class JobNotFound(PlimsollError):
    """No job has this id."""

    code = "job-not-found"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"No job has the id {job_id[:100]!r}.")
        self.job_id = job_id


class IdempotencyConflict(PlimsollError):
    """An idempotency key came back with a different request."""

    code = "idempotency-conflict"

    def __init__(self, key: str) -> None:
        super().__init__(
            f"The idempotency key {key[:100]!r} was used for a different request. "
            "Send the first request again, or this one under a new key."
        )
        self.key = key


class InvalidCursor(PlimsollError):
    """A page's cursor is not one that this service gave out."""

    code = "invalid-cursor"

    def __init__(self) -> None:
        super().__init__(
            "The cursor is not one that this service gave out. Omit it to begin at the newest.",
            pointer="/cursor",
        )


class Unstorable(InvalidQuestion):
    """A value that no database holds: a NUL character, half a surrogate pair, a number beyond its column."""

    code = "unstorable"

    def __init__(self) -> None:
        super().__init__(
            "The request holds a value that cannot be stored: a NUL character, half of a surrogate pair, "
            "or a number out of range. Remove it."
        )


class DatabaseUnavailable(PlimsollError):
    """The database cannot be reached, or refuses to serve."""

    code = "database-unavailable"


class PathNotAllowed(PlimsollError):
    """A path lies outside every folder that the service may touch."""

    code = "path-not-allowed"


class InvalidCheckpoint(PlimsollError):
    """A checkpoint's index or header contradicts itself or the file it stands in."""

    code = "invalid-checkpoint"


class HubModelNotFound(PlimsollError):
    """The hub mirror has no such model or revision, or shows it to nobody without an account."""

    code = "hub-model-not-found"


class HubUnreachable(PlimsollError):
    """The hub mirror does not answer, or with something that is no config."""

    code = "hub-unreachable"


class HubTimedOut(PlimsollError):
    """The hub mirror took longer than it may."""

    code = "hub-timed-out"


class KeyNotFound(PlimsollError):
    """No API key has this id."""

    code = "key-not-found"

    def __init__(self, key_id: str) -> None:
        super().__init__(f"No API key has the id {key_id[:100]!r}; `plimsoll keys list` shows all of them.")
        self.key_id = key_id


class Unauthenticated(PlimsollError):
    """No API key came with the request, or none that is in force; which of these is not told."""

    code = "unauthenticated"

    def __init__(self, why: str = "") -> None:
        super().__init__(
            f"{why}This needs a valid API key. Send one as 'Authorization: Bearer …'; whoever runs the "
            "service makes them with `plimsoll keys create`."
        )


class ScopeMissing(PlimsollError):
    """The API key is in force and was not made for this."""

    code = "scope-missing"

    def __init__(self, scope: str) -> None:
        super().__init__(f"This needs the scope {scope!r}, which the API key lacks.")
        self.scope = scope


class TryLater(PlimsollError):
    """The service would answer this later, and says when."""

    code = "try-later"

    def __init__(self, detail: str, *, retry_after_seconds: int) -> None:
        super().__init__(f"{detail} Try again in {retry_after_seconds} s.")
        self.retry_after_seconds = retry_after_seconds


class Overloaded(TryLater):
    """More plans wait to be searched for, or to be stored, than can be answered in time."""

    code = "overloaded"

    def __init__(self, *, waiting: int, retry_after_seconds: int, until: str = "searched for") -> None:
        super().__init__(f"{waiting} plans are waiting to be {until}.", retry_after_seconds=retry_after_seconds)


class RateLimited(TryLater):
    """More requests came than one key or address may send."""

    code = "rate-limited"

    def __init__(self, *, requests_per_second: float, retry_after_seconds: int) -> None:
        super().__init__(
            f"You sent more than {figure(requests_per_second)} requests per second.",
            retry_after_seconds=retry_after_seconds,
        )


class StorageLimitReached(TryLater):
    """One key or address stored as much of new plans, jobs and measurements as it may within a day."""

    code = "storage-limit-reached"

    def __init__(self, *, bytes_per_day: int, retry_after_seconds: int) -> None:
        super().__init__(
            f"Your new plans, jobs and measurements took more than {bytes_per_day:,} bytes today. "
            "What is stored is still answered.",
            retry_after_seconds=retry_after_seconds,
        )


class TooManyWrongKeys(TryLater):
    """More wrong keys came from one address than one may try; a right one from there is still let through."""

    code = "too-many-wrong-keys"

    def __init__(self, *, keys_per_minute: float, retry_after_seconds: int) -> None:
        super().__init__(
            f"Your address sent more than {figure(keys_per_minute)} keys per minute that are not valid.",
            retry_after_seconds=retry_after_seconds,
        )


class SearchLimitReached(TryLater):
    """As many searches of one key or address wait already as may."""

    code = "search-limit-reached"

    def __init__(self, *, limit: int, retry_after_seconds: int) -> None:
        super().__init__(
            f"{limit} of your plans are already waiting to be searched for, which is the limit.",
            retry_after_seconds=retry_after_seconds,
        )


class StreamLimitReached(TryLater):
    """One key or address holds as many streams of events open as it may."""

    code = "stream-limit-reached"

    def __init__(self, *, limit: int, retry_after_seconds: int) -> None:
        super().__init__(
            f"You already have {limit} streams open, which is the limit.",
            retry_after_seconds=retry_after_seconds,
        )


class JobQuotaReached(TryLater):
    """A key has as many unfinished jobs as it may."""

    code = "job-quota-reached"

    def __init__(self, *, unfinished: int, limit: int, retry_after_seconds: int) -> None:
        super().__init__(
            f"This key has {unfinished} unfinished jobs, and the limit is {limit}.",
            retry_after_seconds=retry_after_seconds,
        )


class QueueFull(TryLater):
    """As many jobs wait already as the service is set to take."""

    code = "queue-full"

    def __init__(self, *, waiting: int, limit: int, retry_after_seconds: int) -> None:
        super().__init__(
            f"{waiting} jobs are already waiting, and the limit is {limit}.", retry_after_seconds=retry_after_seconds
        )
        self.waiting = waiting
        self.limit = limit


class RankFailed(PlimsollError):
    """One of the processes that ran a plan's ranks ended without an account of itself."""

    code = "rank-failed"


class NoSuitableDevice(PlimsollError):
    """This worker has no device that the run could take place on, or too little memory for it."""

    code = "no-suitable-device"
