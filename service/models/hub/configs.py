"""A model's `config.json` from the configured hub mirror: bounded, checked and remembered.

A mirror answers as huggingface.co does, perhaps by way of a redirect:
`{hub}/{org}/{name}/resolve/{revision}/config.json`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import quote

import httpx

from plimsoll.planners.ground.errors import InvalidModelConfig, InvalidQuestion
from plimsoll.planners.ground.figures import figure
from plimsoll.service.ground.errors import HubModelNotFound, HubTimedOut, HubUnreachable
from plimsoll.service.ground.settings import PREFIX, Settings
from plimsoll.service.models.config_files import CONFIG_FILE, MOST_CONFIG_BYTES, checked_config
from plimsoll.service.models.hub.cache import HubCache
from plimsoll.service.models.hub.redirects import POINTER, Redirects, Resolver, Target, addresses_of

REVISION_POINTER = "/model/revision"
MOST_REDIRECTS = 3

# As the hub names repositories and revisions: a branch, a tag, `refs/pr/1` or a commit.
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(?:/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,199}", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")

# What the hub says in `X-Error-Code` (huggingface_hub, utils/_http.py, hf_raise_for_status).
NOT_FOUND_REASONS: Mapping[str, tuple[str, str]] = {
    "RevisionNotFound": ("has no such revision", REVISION_POINTER),
    "EntryNotFound": (f"has no {CONFIG_FILE} at that revision", POINTER),
    "GatedRepo": ("is shown to nobody without an account", POINTER),
}
NOT_FOUND = ("is not there, or is shown to nobody without an account", POINTER)
NOT_FOUND_STATUSES = (401, 403, 404, 410)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubConfig:
    """A fetched config, and where it is from."""

    config: dict[str, Any]
    source: str


class HubClient:
    """Fetches configs; safe between threads."""

    def __init__(self, settings: Settings, *, resolver: Resolver = addresses_of) -> None:
        self._hub = httpx.URL(settings.hub_url.rstrip("/")) if settings.hub_url else None
        self._redirect_hosts = settings.hub_redirect_hosts
        self._resolver = resolver
        self._timeout_seconds = settings.hub_timeout_seconds
        self._cache = HubCache(settings.data_dir / "hub", lasting_seconds=settings.hub_cache_seconds)

    def config(self, repository: str, revision: str) -> HubConfig:
        """Return a repository's `config.json`, fetched or remembered; call it off the event loop.

        A commit never changes and is remembered for ever, a branch or a tag for
        `hub_cache_seconds`. Raises InvalidQuestion where no mirror is configured or
        a name is none, HubModelNotFound, HubUnreachable, HubTimedOut and InvalidModelConfig.
        """
        if self._hub is None:
            raise InvalidQuestion(
                f"No hub mirror is configured ({PREFIX}HUB_URL). Send the contents of the model's config.json "
                'as {"model": {"config": …}}.',
                pointer=POINTER,
            )
        _check_names(repository, revision)
        path = f"{self._hub.path.rstrip('/')}/{repository}/resolve/{quote(revision, safe='')}/{CONFIG_FILE}"
        url = self._hub.copy_with(raw_path=path.encode())
        address = str(url.copy_with(userinfo=b""))
        source = f"{CONFIG_FILE} of {repository} at revision {revision}, from {self._hub.host}"
        config = self._remembered(address, is_lasting=COMMIT.fullmatch(revision) is not None)
        if config is None:
            content = asyncio.run(self._fetched(self._hub, url, repository))
            config = checked_config(content, pointer=POINTER)
            self._cache.put(address, content)
        return HubConfig(config=config, source=source)

    def _remembered(self, address: str, *, is_lasting: bool) -> dict[str, Any] | None:
        content = self._cache.get(address, is_lasting=is_lasting)
        try:
            return None if content is None else checked_config(content, pointer=POINTER)
        except InvalidModelConfig:
            # Only what could be read was ever kept: the file is damaged, and is fetched again.
            return None

    async def _fetched(self, hub: httpx.URL, url: httpx.URL, repository: str) -> bytes:
        """Return what the mirror answers, within the time allowed for all of it."""
        redirects = Redirects(hub, self._redirect_hosts, resolver=self._resolver)
        # No proxy from the environment: what is asked must be the address that was checked.
        client = httpx.AsyncClient(
            timeout=self._timeout_seconds, verify=httpx.create_ssl_context(), trust_env=False, follow_redirects=False
        )
        try:
            async with asyncio.timeout(self._timeout_seconds), client:
                return await _content(client, Target(url=url), redirects, repository)
        except (TimeoutError, httpx.TimeoutException) as error:
            detail = f"The hub mirror {hub.host} did not answer within {figure(self._timeout_seconds)} s."
            raise HubTimedOut(detail, pointer=POINTER) from error
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            detail = f"The hub mirror {hub.host} cannot be reached ({type(error).__name__})."
            raise HubUnreachable(detail, pointer=POINTER) from error


async def _content(client: httpx.AsyncClient, target: Target, redirects: Redirects, repository: str) -> bytes:
    """Return the body at the end of the redirects; raises HubModelNotFound, HubUnreachable and InvalidModelConfig."""
    for _ in range(1 + MOST_REDIRECTS):
        response = await client.send(target.request(client), stream=True)
        try:
            location = response.headers.get("location") if response.is_redirect else None
            if location is None:
                _check_answer(response, repository)
                return await _body(response)
        finally:
            await response.aclose()
        target = await asyncio.to_thread(redirects.target, target.url, location)
    raise HubUnreachable(f"The hub mirror redirects more than {MOST_REDIRECTS} times.", pointer=POINTER)


def _check_answer(response: httpx.Response, repository: str) -> None:
    if response.status_code in NOT_FOUND_STATUSES:
        reason, pointer = NOT_FOUND_REASONS.get(response.headers.get("x-error-code", ""), NOT_FOUND)
        raise HubModelNotFound(f"On the hub mirror, {repository!r} {reason}.", pointer=pointer)
    if response.status_code != httpx.codes.OK:
        raise HubUnreachable(f"The hub mirror answered with status {response.status_code}.", pointer=POINTER)
    if response.headers.get("content-encoding", "identity") != "identity":
        raise HubUnreachable("The hub mirror answered in an encoding that was not asked for.", pointer=POINTER)


async def _body(response: httpx.Response) -> bytes:
    content = bytearray()
    async for chunk in response.aiter_raw():
        content += chunk
        if len(content) > MOST_CONFIG_BYTES:
            raise InvalidModelConfig(f"{CONFIG_FILE} is larger than {MOST_CONFIG_BYTES} bytes.", pointer=POINTER)
    return bytes(content)


def _check_names(repository: str, revision: str) -> None:
    """Raise unless both are names that a hub could have: no way out of the path, no second address."""
    for name, pattern, pointer, form in (
        (repository, REPOSITORY, POINTER, "org/name"),
        (revision, REVISION, REVISION_POINTER, "a branch, a tag or a commit"),
    ):
        if not pattern.fullmatch(name) or ".." in name:
            _refuse_name(name, form, pointer)


def _refuse_name(name: str, form: str, pointer: str) -> NoReturn:
    raise InvalidQuestion(f"{name[:100]!r} is not of the form {form}.", pointer=pointer)
