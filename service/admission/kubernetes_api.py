"""ConfigMaps through a Kubernetes API server, where one is configured: bounded in time and size, kept for seconds.

Source: Kubernetes API reference, `GET /api/v1/namespaces/{namespace}/configmaps/{name}`; a pod's own credentials lie
where "Accessing the Kubernetes API from a Pod" says.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Mapping
from pathlib import Path

import httpx
import structlog

from service.admission.config_maps import ConfigMapNotRead, ConfigMaps, NoConfigMaps
from service.recently_used import RecentlyUsed
from service.settings import Settings

# A review has to be answered whatever the API server does.
LONGEST_SECONDS = 1.5
# A workload is created moments after the ConfigMap it names was: a change must be seen soon, a refusal sooner.
KEPT_SECONDS = 5.0
MOST_KEPT = 256
# Kubernetes takes no ConfigMap of more than 1 MiB; escapes in JSON make it longer.
MOST_BYTES = 3 * 2**20
# Names are DNS labels and subdomains (RFC 1123).
NAMESPACE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
REASONS = {
    401: "the API server does not know this service",
    403: "this service may not read ConfigMaps there",
    404: "there is none of that name",
}

log = structlog.get_logger(__name__)


def config_maps_of(settings: Settings) -> ConfigMaps:
    """Return what reads ConfigMaps as the settings say; raises OSError where the authority's file cannot be read."""
    if settings.kubernetes_api_url is None:
        return NoConfigMaps()
    is_encrypted = settings.kubernetes_api_url.startswith("https://")
    return KubernetesConfigMaps(
        settings.kubernetes_api_url,
        token_file=settings.kubernetes_token_file if is_encrypted else None,
        authority=ssl.create_default_context(cafile=settings.kubernetes_ca_file) if is_encrypted else None,
    )


class KubernetesConfigMaps:
    """Reads ConfigMaps; none takes longer than `seconds`."""

    def __init__(
        self,
        url: str,
        *,
        token_file: Path | None = None,
        authority: ssl.SSLContext | None = None,
        seconds: float = LONGEST_SECONDS,
    ) -> None:
        """Take where the API is, whose certificates it may show, and the token, which is read anew each time."""
        self._url = url.rstrip("/")
        self._token_file = token_file
        self._authority = authority
        self._seconds = seconds
        self._kept: RecentlyUsed[tuple[str, str], Mapping[str, str]] = RecentlyUsed(MOST_KEPT, seconds=KEPT_SECONDS)

    async def get(self, namespace: str, name: str) -> Mapping[str, str]:
        """Return a ConfigMap's texts by key; raises ConfigMapNotRead."""
        if not (NAMESPACE.fullmatch(namespace) and NAME.fullmatch(name)):
            raise ConfigMapNotRead("no ConfigMap can have that name")
        texts = self._kept.get((namespace, name))
        if texts is None:
            texts = await self._asked(f"{self._url}/api/v1/namespaces/{namespace}/configmaps/{name}")
            self._kept.put((namespace, name), texts)
        return texts

    async def _asked(self, url: str) -> Mapping[str, str]:
        try:
            async with asyncio.timeout(self._seconds):
                body = await self._body(url)
        except TimeoutError as error:
            raise ConfigMapNotRead(f"the API server did not answer within {self._seconds:g} s") from error
        except (httpx.HTTPError, OSError) as error:
            log.warning("config map not read", url=url, error=repr(error))
            raise ConfigMapNotRead("the API server cannot be reached") from error
        return _texts(body)

    async def _body(self, url: str) -> bytes:
        headers = {"accept": "application/json"}
        if self._token_file is not None:
            headers["authorization"] = f"Bearer {self._token_file.read_text().strip()}"
        verify = self._authority if self._authority is not None else True
        async with (
            httpx.AsyncClient(verify=verify, trust_env=False, timeout=self._seconds) as client,
            client.stream("GET", url, headers=headers) as response,
        ):
            if response.status_code != httpx.codes.OK:
                told = REASONS.get(response.status_code, f"the API server answers {response.status_code}")
                raise ConfigMapNotRead(told)
            body = bytearray()
            async for part in response.aiter_bytes():
                body += part
                if len(body) > MOST_BYTES:
                    raise ConfigMapNotRead("it is larger than a ConfigMap can be")
            return bytes(body)


def _texts(body: bytes) -> Mapping[str, str]:
    """Return `data` of a ConfigMap; `binaryData` holds no options."""
    try:
        data = json.loads(body).get("data") or {}
        return {str(key): text for key, text in data.items() if isinstance(text, str)}
    except (ValueError, AttributeError, RecursionError) as error:
        raise ConfigMapNotRead("the API server's answer is no ConfigMap") from error
