"""What containers take from ConfigMaps: variables of their environment, and files where they are mounted.

Source: the published types of core/v1 (EnvFromSource, EnvVarSource, ConfigMapVolumeSource, ProjectedVolumeSource).
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from plimsoll.service.workloads.objects.object_parts import ObjectNotRead, below, each_of
from plimsoll.service.workloads.objects.pods import Container, PodGroup, Pods

# More than any workload names; a review asks for no more.
MOST_CONFIG_MAPS = 16


class ConfigMaps(Protocol):
    """Finds ConfigMaps."""

    async def get(self, namespace: str, name: str) -> Mapping[str, str]:
        """Return a ConfigMap's texts by key; raises ObjectNotRead."""
        ...


class NoConfigMaps:
    """No API is configured that ConfigMaps could be read through."""

    async def get(self, namespace: str, name: str) -> Mapping[str, str]:  # noqa: ARG002
        """Raise ObjectNotRead."""
        raise ObjectNotRead("no Kubernetes API is configured to read it through")


class GivenConfigMaps:
    """ConfigMaps that stand beside the workload, by namespace and name."""

    def __init__(self, given: Mapping[tuple[str, str], Mapping[str, str]]) -> None:
        """Take them."""
        self._given = given

    async def get(self, namespace: str, name: str) -> Mapping[str, str]:
        """Return a ConfigMap's texts; raises ObjectNotRead where it is none of them."""
        if (namespace, name) not in self._given:
            raise ObjectNotRead("it is not in the file")
        return self._given[namespace, name]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mount:
    """A ConfigMap's place in a container; `paths` are by key, None for all keys by their own names."""

    config_map: str
    paths: Mapping[str, str] | None
    folder: str
    sub_path: str


async def with_config_maps(group: PodGroup, namespace: str, config_maps: ConfigMaps) -> PodGroup:
    """Return the pods with what their containers take from ConfigMaps, and what of it could not be read and why."""
    named = dict.fromkeys(name for pods in group.members for name in _named(pods))
    if not named:
        return group
    asked = list(named)[:MOST_CONFIG_MAPS]
    answers = await asyncio.gather(*(_texts_or_reason(config_maps, namespace, name) for name in asked))
    found = dict(zip(asked, answers, strict=True))
    return replace(group, members=tuple(_filled(pods, found) for pods in group.members))


async def _texts_or_reason(config_maps: ConfigMaps, namespace: str, name: str) -> Mapping[str, str] | str:
    try:
        return await config_maps.get(namespace, name)
    except ObjectNotRead as error:
        return str(error)


def _named(pods: Pods) -> Iterator[str]:
    for container in pods.containers:
        for source in each_of(container.definition.get("envFrom")):
            name = below(source, ("configMapRef", "name"))
            if isinstance(name, str):
                yield name
        for entry in each_of(container.definition.get("env")):
            name = below(entry, ("valueFrom", "configMapKeyRef", "name"))
            if isinstance(name, str):
                yield name
        yield from (mount.config_map for mount in _mounts(pods, container))


def _filled(pods: Pods, found: Mapping[str, Mapping[str, str] | str]) -> Pods:
    return replace(pods, containers=tuple(_with_sources(pods, container, found) for container in pods.containers))


def _with_sources(pods: Pods, container: Container, found: Mapping[str, Mapping[str, str] | str]) -> Container:
    unread: dict[str, None] = {}

    def texts(name: str) -> Mapping[str, str]:
        told = found.get(name, f"more than {MOST_CONFIG_MAPS} are named")
        if isinstance(told, str):
            unread[f"ConfigMap {name[:80]} ({told})"] = None
            return {}
        return told

    env: dict[str, str] = {}
    for source in each_of(container.definition.get("envFrom")):
        name = below(source, ("configMapRef", "name"))
        if isinstance(name, str):
            prefix = source.get("prefix")
            env |= {f"{prefix if isinstance(prefix, str) else ''}{key}": text for key, text in texts(name).items()}
    for entry in each_of(container.definition.get("env")):
        name, key = (below(entry, ("valueFrom", "configMapKeyRef", step)) for step in ("name", "key"))
        if isinstance(name, str) and isinstance(key, str) and key in (known := texts(name)):
            env[str(below(entry, ("name",)))] = known[key]
    files: dict[str, str] = {}
    for mount in _mounts(pods, container):
        files |= _mounted(mount, texts(mount.config_map))
    return replace(container, env={**env, **container.env}, files=files, unread=tuple(unread))


def _mounts(pods: Pods, container: Container) -> Iterator[_Mount]:
    volumes = {below(volume, ("name",)): volume for volume in each_of(pods.spec.get("volumes")) if _is_named(volume)}
    for mount in each_of(container.definition.get("volumeMounts")):
        name, folder, sub_path = (below(mount, (step,)) for step in ("name", "mountPath", "subPath"))
        volume = volumes.get(name) if isinstance(name, str) else None
        if not isinstance(folder, str) or volume is None:
            continue
        parts = [volume, *each_of(below(volume, ("projected", "sources")))]
        for source in (below(part, ("configMap",)) for part in parts):
            config_map = below(source, ("name",))
            if isinstance(config_map, str):
                sub = sub_path if isinstance(sub_path, str) else ""
                yield _Mount(config_map=config_map, paths=_paths(source), folder=folder, sub_path=sub)


def _is_named(volume: Any) -> bool:
    return isinstance(below(volume, ("name",)), str)


def _paths(source: Any) -> Mapping[str, str] | None:
    items = below(source, ("items",))
    if not isinstance(items, list):
        return None
    pairs = ((below(item, ("key",)), below(item, ("path",))) for item in items)
    return {key: path for key, path in pairs if isinstance(key, str) and isinstance(path, str)}


def _mounted(mount: _Mount, texts: Mapping[str, str]) -> dict[str, str]:
    """Return a mount's files by absolute path; one that is mounted by itself lies at the mount's own path."""
    paths = {key: key for key in texts} if mount.paths is None else mount.paths
    files = {posixpath.normpath(path): texts[key] for key, path in paths.items() if key in texts}
    if not mount.sub_path:
        return {posixpath.normpath(posixpath.join(mount.folder, path)): text for path, text in files.items()}
    sub_path = posixpath.normpath(mount.sub_path)
    return {posixpath.normpath(mount.folder): files[sub_path]} if sub_path in files else {}
