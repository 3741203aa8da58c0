"""Everything that can be set, each with its default and what it does.

A setting is read from the environment, as `PLIMSOLL_` and its name in capitals,
and checked when the service starts: a value that makes no sense stops it there.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from plimsoll.planners.ground.figures import figure
from plimsoll.service.ground.network_addresses import Network, is_loopback

PREFIX = "PLIMSOLL_"

PLANNING_THREADS = 4
"""Of an API process. Planning is Python and numpy: more searches at once only make each slower."""

_HOST_NAME = re.compile(r"\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")

# A process remembers an answer for a day, and notes the next asking then; one day more for clocks.
SHORTEST_PLAN_DAYS = 3


def _split(separator: str) -> BeforeValidator:
    """Return a validator that takes a JSON list, or items between separators."""

    def items(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value.lstrip().startswith("["):
            return json.loads(value)
        return [item.strip() for item in value.split(separator) if item.strip()]

    return BeforeValidator(items)


def _checked_url(url: str) -> str:
    # Imported where a database is set: a command that needs none starts without SQLAlchemy.
    from plimsoll.service.ground.database_address import sqlalchemy_url

    sqlalchemy_url(url)
    return url


def _checked_host(name: str) -> str:
    if not _HOST_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no host name: write plimsoll.example, *.plimsoll.example or *, without a port.")
    return name.lower()


def _checked_network(written: str) -> Network:
    return ipaddress.ip_network(written)


Paths = Annotated[tuple[Path, ...], NoDecode, _split(os.pathsep)]
Names = Annotated[tuple[str, ...], NoDecode, _split(",")]
Hosts = Annotated[tuple[Annotated[str, AfterValidator(_checked_host)], ...], NoDecode, _split(",")]
Networks = Annotated[tuple[Annotated[Network, PlainValidator(_checked_network)], ...], NoDecode, _split(",")]


class Settings(BaseSettings):
    """The settings of one process."""

    # An address may hold a password: no error repeats what was set, and no `repr` shows such an address.
    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        protected_namespaces=(),
        hide_input_in_errors=True,
    )

    database_url: Annotated[str, AfterValidator(_checked_url)] | None = Field(
        default=None,
        repr=False,
        description="The PostgreSQL to use, as `postgresql://user:password@host:port/name`. "
        "Unset: an embedded one, kept in the data folder.",
    )
    database_pool_size: int = Field(
        default=10,
        ge=1,
        le=1000,
        description="How many connections a process keeps to the database at most, beside two for plans and one that "
        "hears of jobs.",
    )
    postgres_bin: Path | None = Field(
        default=None,
        description="The folder with `postgres` and `initdb` for the embedded database. "
        "Unset: those of an installed wheel, else the system's.",
    )
    data_dir: Path = Field(
        default=Path(".plimsoll"), description="The folder for all that is kept: the embedded database, caches, logs."
    )
    host: str = Field(default="127.0.0.1", min_length=1, description="The address that the API listens on.")
    port: int = Field(default=8000, ge=0, le=65535, description="The port that the API listens on; 0 takes a free one.")
    model_roots: Paths = Field(
        default=(),
        description=f"The folders that models may be read from, as a JSON list or between `{os.pathsep}`. None: no "
        "request may name a path.",
    )
    output_roots: Paths = Field(
        default=(),
        description=f"The folders that quantized checkpoints may be written to, as a JSON list or between "
        f"`{os.pathsep}`. None: nothing is written.",
    )
    hub_url: str | None = Field(
        default=None,
        repr=False,
        pattern=r"^https?://",
        description="The model hub mirror that `config.json` may be fetched from. Unset: none is fetched.",
    )
    hub_redirect_hosts: Names = Field(
        default=(),
        description="The hosts beside itself that the hub mirror may redirect to, with their port where it is not the "
        "scheme's own. A JSON list or between commas.",
    )
    hub_timeout_seconds: float = Field(
        default=10.0, gt=0, le=300, description="How long the hub mirror may take for one `config.json`."
    )
    hub_cache_seconds: float = Field(
        default=3600.0,
        ge=0,
        description="How long a branch's or a tag's `config.json` is kept; a commit's is kept for ever.",
    )
    admission_policy_file: Path | None = Field(
        default=None,
        description="The TOML file that says by namespace what admission does; read again when it changes. "
        "Unset: `enforce` everywhere.",
    )
    kubernetes_api_url: str | None = Field(
        default=None,
        pattern=r"^https?://",
        description="The Kubernetes API that admission reads ConfigMaps and training runtimes through, in a cluster "
        "`https://kubernetes.default.svc`. Unset: it reads none, and says what was missing.",
    )
    kubernetes_token_file: Path = Field(
        default=Path("/var/run/secrets/kubernetes.io/serviceaccount/token"),
        description="The token that is shown to that API over HTTPS, read anew for every request.",
    )
    kubernetes_ca_file: Path = Field(
        default=Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"),
        description="The authority (PEM) that signed that API's certificate.",
    )
    max_body_bytes: int = Field(
        default=16 * 2**20,
        ge=1024,
        description="The largest request body that is read; bodies above 1 MiB may together take twice this at once.",
    )
    body_timeout_seconds: float = Field(
        default=20.0, gt=0, description="How long a request's head, and then its body, may take to arrive."
    )
    request_timeout_seconds: float = Field(
        default=30.0, gt=0, description="How long a request may take before it is answered with an error."
    )
    job_timeout_seconds: float = Field(
        default=3600.0, gt=0, description="How long one attempt of a job may run before it is stopped."
    )
    job_memory_bytes: int = Field(
        default=8 * 2**30, ge=2**28, description="How much memory the process that runs a job may take."
    )
    job_max_attempts: int = Field(
        default=3, ge=1, le=100, description="How often a job is begun before it counts as failed."
    )
    heartbeat_seconds: float = Field(
        default=2.0, gt=0, description="How often a worker says that it is alive. Less than half of what follows."
    )
    stalled_after_seconds: float = Field(
        default=6.0, gt=0, description="How long a worker may be silent before its jobs go to others."
    )
    queue_limit: int = Field(
        default=1000, ge=0, description="How many jobs may wait; further ones are refused until there is room."
    )
    allow_anonymous: bool = Field(
        default=False,
        description="Whether anyone is answered without an API key where the API listens beyond this machine. "
        "On a loopback address all of this machine is, whatever stands here.",
    )
    allowed_hosts: Hosts = Field(
        default=(),
        description="The host names that this service is asked by, beside addresses, `localhost` and `PLIMSOLL_HOST`; "
        "`*.example.com` stands for every name under one, `*` for any. A JSON list or between commas. A request that "
        "names another host, or comes from a page of another site, needs an API key.",
    )
    trusted_proxies: Networks = Field(
        default=(),
        description="The addresses or networks (CIDR) of reverse proxies, beside this machine's own, whose "
        "`X-Forwarded-For` says who asks. A JSON list or between commas.",
    )
    key_requests_per_second: float = Field(
        default=50.0,
        ge=0,
        description="How many requests a second one API key (without one, one IPv4 address or IPv6 /64 beyond this "
        "machine) may send to each API process, twice as many at once; 0 sets no limit.",
    )
    wrong_keys_per_minute: float = Field(
        default=60.0,
        ge=0,
        description="How many API keys that are not in force one IPv4 address or IPv6 /64 may show to each API process "
        "in a minute, and at once; a right one is let through regardless. 0 sets no limit.",
    )
    key_planning_threads: int = Field(
        default=PLANNING_THREADS - 1,
        ge=1,
        le=PLANNING_THREADS,
        description=f"How many of an API process' {PLANNING_THREADS} planning threads the searches of one API key "
        "(without one, of one address) may have at once, whether or not others wait.",
    )
    key_waiting_searches: int = Field(
        # As many small ones as end within a second, which is the soonest that a refused one is told to come back.
        default=200,
        ge=0,
        description="How many further searches of one API key (without one, of one address) may wait for their turn in "
        "each API process.",
    )
    max_connections: int = Field(
        default=10_000,
        ge=1,
        description="How many connections each API process holds; fewer where it may open fewer files. Beyond, the one "
        "that has asked nothing for longest is closed.",
    )
    address_connections: int = Field(
        default=500,
        ge=1,
        description="How many connections one IPv4 address or IPv6 /64 beyond this machine may hold at each API "
        "process; those of `PLIMSOLL_TRUSTED_PROXIES` may hold them all.",
    )
    key_streams: int = Field(
        default=500,
        ge=1,
        description="How many streams of events one API key (without one, one address) may hold open at each API "
        "process.",
    )
    key_stored_bytes_per_day: int = Field(
        default=2 * 2**30,
        ge=0,
        description="How many bytes of new plans, jobs and measurements one API key (without one, one address) may "
        "have each API process store in a day, and at once; 0 sets no limit.",
    )
    key_job_limit: int = Field(default=100, ge=0, description="How many unfinished jobs one API key may have.")
    tls_certificate_file: Path | None = Field(
        default=None, description="The certificate chain (PEM) that the API serves HTTPS with. Unset: HTTP."
    )
    tls_key_file: Path | None = Field(default=None, description="The private key (PEM) of that certificate.")
    tls_client_ca_file: Path | None = Field(
        default=None,
        description="The authority (PEM) that must have signed the certificate of every client that connects; "
        "`/admission/validate` then asks for no API key.",
    )
    keep_plans_days: int = Field(
        default=365, ge=0, description="How long plans are kept that nobody asks for: 3 days or more; 0 keeps them all."
    )
    keep_jobs_days: int = Field(
        default=90, ge=0, description="How long finished jobs and their results are kept; 0 keeps them all."
    )
    keep_events_days: int = Field(
        default=7, ge=0, description="How long the events of finished jobs are kept; 0 keeps them with their jobs."
    )
    worker_queues: Names = Field(
        default=("cpu",),
        min_length=1,
        description="The queues that a worker takes jobs from, by what it can do: `cpu`, `gpu`, `gpu:h100`. "
        "A JSON list or between commas.",
    )
    traces_url: str | None = Field(
        default=None,
        repr=False,
        pattern=r"^https?://",
        description="The OpenTelemetry collector that API and workers send traces to, as "
        "`http://collector:4318/v1/traces` (needs `pip install 'plimsoll[traces]'`). Unset: nothing is traced.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least important messages that are logged."
    )

    @property
    def longest_request_seconds(self) -> float:
        """Return how long a request may take from its head to the beginning of its answer."""
        return self.body_timeout_seconds + self.request_timeout_seconds

    @property
    def is_on_loopback(self) -> bool:
        """Return whether the API can be reached from this machine alone."""
        return is_loopback(self.host)

    @property
    def needs_keys(self) -> bool:
        """Return whether a request without an API key is refused."""
        return not (self.is_on_loopback or self.allow_anonymous)

    @model_validator(mode="after")
    def _check_retention(self) -> Self:
        """Refuse to delete plans that a process may still remember."""
        if 0 < self.keep_plans_days < SHORTEST_PLAN_DAYS:
            raise ValueError(
                f"Processes remember plans for a day. Set {PREFIX}KEEP_PLANS_DAYS to {SHORTEST_PLAN_DAYS} or more, "
                "or to 0 to keep them all."
            )
        return self

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        """Refuse half of a certificate, and clients' certificates where there is no TLS to show them in."""
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise ValueError(f"{PREFIX}TLS_CERTIFICATE_FILE and {PREFIX}TLS_KEY_FILE are set together or not at all.")
        if self.tls_client_ca_file is not None and self.tls_certificate_file is None:
            raise ValueError(f"{PREFIX}TLS_CLIENT_CA_FILE needs {PREFIX}TLS_CERTIFICATE_FILE.")
        return self

    @model_validator(mode="after")
    def _check_heartbeat(self) -> Self:
        """Refuse a worker that would count as dead between two signs of life."""
        if 2 * self.heartbeat_seconds > self.stalled_after_seconds:
            raise ValueError(
                f"A worker that reports every {figure(self.heartbeat_seconds)} s would seem dead after "
                f"{figure(self.stalled_after_seconds)} s. Set {PREFIX}STALLED_AFTER_SECONDS to at least "
                f"{figure(2 * self.heartbeat_seconds)}."
            )
        return self


def reading_anywhere(settings: Settings) -> Settings:
    """Return the settings of a process that serves who started it alone: it reads and writes what they may anyway."""
    root = Path("/")
    return settings.model_copy(update={"model_roots": (root,), "output_roots": (root,)})


def root_variables(settings: Settings) -> dict[str, str]:
    """Return the environment in which another process reads and writes where these settings allow it."""
    roots = {"PLIMSOLL_MODEL_ROOTS": settings.model_roots, "PLIMSOLL_OUTPUT_ROOTS": settings.output_roots}
    return {name: json.dumps([str(path) for path in paths]) for name, paths in roots.items()}


def settings_reference() -> str:
    """Return a table of all settings in Markdown."""
    lines = ["| variable | default | what it does |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        description = (field.description or "").replace("|", "\\|")
        lines.append(f"| `{PREFIX}{name.upper()}` | {_shown_default(field)} | {description} |")
    return "\n".join(lines) + "\n"


def _shown_default(field: FieldInfo) -> str:
    value = field.default
    if value is None or value == ():
        return "unset"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"`{','.join(str(item) for item in value)}`"
    return f"`{value}`"
