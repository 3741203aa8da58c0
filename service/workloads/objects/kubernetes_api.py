"""Single objects through a Kubernetes API server, where one is configured: bounded in time and size, kept for seconds.

Source: Kubernetes API reference, `GET /api/v1/namespaces/{namespace}/configmaps/{name}`; kubeflow/trainer's resources
of v1alpha1; a pod's own credentials lie where "Accessing the Kubernetes API from a Pod" says.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import structlog

from plimsoll.planners.ground.figures import figure
from plimsoll.service.ground.recently_used import RecentlyUsed
from plimsoll.service.ground.settings import Settings
from plimsoll.service.workloads.objects.config_maps import ConfigMaps, NoConfigMaps
from plimsoll.service.workloads.objects.object_parts import ObjectNotRead
from plimsoll.service.workloads.objects.training_runtimes import (
    CLUSTER_RUNTIME,
    NAMESPACED_RUNTIME,
    NoRuntimes,
    TrainingRuntimes,
)

# A review has to be answered whatever the API server does.
LONGEST_SECONDS = 1.5
# A workload is created moments after the ConfigMap it names was: a change must be seen soon, a refusal sooner.
KEPT_SECONDS = 5.0
MOST_KEPT = 256
# A larger one is read anew each time.
MOST_KEPT_BYTES = 64 * 2**10
# Kubernetes takes no ConfigMap of more than 1 MiB; escapes in JSON make it longer.
MOST_BYTES = 3 * 2**20
# Names are DNS labels and subdomains (RFC 1123).
NAMESPACE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
REASONS = {
    401: "the API server does not know this service",
    403: "this service may not read {kind}s there",
    404: "there is none of that name",
}

RUNTIMES_PATH = "/apis/trainer.kubeflow.org/v1alpha1"

log = structlog.get_logger(__name__)


def api_of(settings: Settings) -> KubernetesApi | None:
    """Return the API that the settings name, None where they name none; raises OSError as it opens no authority."""
    if settings.kubernetes_api_url is None:
        return None
    is_encrypted = settings.kubernetes_api_url.startswith("https://")
    return KubernetesApi(
        settings.kubernetes_api_url,
        token_file=settings.kubernetes_token_file if is_encrypted else None,
        authority=ssl.create_default_context(cafile=settings.kubernetes_ca_file) if is_encrypted else None,
    )


def config_maps_of(api: KubernetesApi | None) -> ConfigMaps:
    """Return what reads ConfigMaps through an API, or says that there is none."""
    return NoConfigMaps() if api is None else KubernetesConfigMaps(api)


def runtimes_of(api: KubernetesApi | None) -> TrainingRuntimes:
    """Return what reads training runtimes through an API, or says that there is none."""
    return NoRuntimes() if api is None else KubernetesRuntimes(api)


class KubernetesApi:
    """Reads single objects; none takes longer than `seconds`."""

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
        self._kept: RecentlyUsed[str, Mapping[str, Any]] = RecentlyUsed(MOST_KEPT, seconds=KEPT_SECONDS)

    async def object(self, path: str, kind: str) -> Mapping[str, Any]:
        """Return the object at a path of the API; raises ObjectNotRead."""
        found = self._kept.get(path)
        if found is None:
            content = await self._asked(f"{self._url}{path}", kind)
            found = _parsed(content, kind)
            if len(content) <= MOST_KEPT_BYTES:
                self._kept.put(path, found)
        return found

    async def _asked(self, url: str, kind: str) -> bytes:
        try:
            async with asyncio.timeout(self._seconds):
                return await self._body(url, kind)
        except TimeoutError as error:
            raise ObjectNotRead(f"the API server did not answer within {figure(self._seconds)} s") from error
        except (httpx.HTTPError, OSError) as error:
            log.warning("object not read", url=url, error=repr(error))
            raise ObjectNotRead("the API server cannot be reached") from error

    async def _body(self, url: str, kind: str) -> bytes:
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
                raise ObjectNotRead(told.format(kind=kind))
            body = bytearray()
            async for part in response.aiter_bytes():
                body += part
                if len(body) > MOST_BYTES:
                    raise ObjectNotRead(f"it is larger than a {kind} can be")
            return bytes(body)


class KubernetesConfigMaps:
    """Reads ConfigMaps through an API."""

    def __init__(self, api: KubernetesApi) -> None:
        """Take the API."""
        self._api = api

    async def get(self, namespace: str, name: str) -> Mapping[str, str]:
        """Return a ConfigMap's texts by key, `binaryData` left away; raises ObjectNotRead."""
        _check("ConfigMap", name, namespace)
        found = await self._api.object(f"/api/v1/namespaces/{namespace}/configmaps/{name}", "ConfigMap")
        data = found.get("data") or {}
        if not isinstance(data, dict):
            raise _no_object("ConfigMap")
        return {str(key): text for key, text in data.items() if isinstance(text, str)}


class KubernetesRuntimes:
    """Reads Kubeflow's training runtimes through an API."""

    def __init__(self, api: KubernetesApi) -> None:
        """Take the API."""
        self._api = api

    async def get(self, kind: str, namespace: str, name: str) -> Mapping[str, Any]:
        """Return a runtime; raises ObjectNotRead."""
        if kind == CLUSTER_RUNTIME:
            _check(kind, name)
            return await self._api.object(f"{RUNTIMES_PATH}/clustertrainingruntimes/{name}", kind)
        if kind != NAMESPACED_RUNTIME:
            raise ObjectNotRead(f"{kind[:40]} is no kind of runtime this service knows")
        _check(kind, name, namespace)
        return await self._api.object(f"{RUNTIMES_PATH}/namespaces/{namespace}/trainingruntimes/{name}", kind)


def _check(kind: str, name: str, namespace: str | None = None) -> None:
    """Raise ObjectNotRead for names that no object has, which could be another path of the API."""
    if not NAME.fullmatch(name) or (namespace is not None and not NAMESPACE.fullmatch(namespace)):
        raise ObjectNotRead(f"no {kind} can have that name")


def _parsed(body: bytes, kind: str) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _no_object(kind) from error
    if not isinstance(found, dict):
        raise _no_object(kind)
    return found


def _no_object(kind: str) -> ObjectNotRead:
    return ObjectNotRead(f"the API server's answer is no {kind}")
