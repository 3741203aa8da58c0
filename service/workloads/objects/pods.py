"""Pods as objects of every kind describe them: equal ones, those that work together, and their containers.

Source: the published types of core/v1 (PodTemplateSpec, Container).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from plimsoll.service.workloads.objects.object_parts import (
    Path,
    annotations_of,
    as_list,
    as_mapping,
    as_texts,
    part_at,
    pointer,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """One container with what of it decides memory.

    `env` and `files` (by absolute path) hold what is plainly written, and what of
    ConfigMaps could be read; `unread` says what of them could not. `definition` is the
    container as it stands in the object.
    """

    name: str
    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: Mapping[str, str]
    resources: Mapping[str, Any]
    pointer: str
    definition: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """`count` equal pods."""

    count: int
    containers: tuple[Container, ...]
    spec: Mapping[str, Any]
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroup:
    """Pods that work together as one job, or as one replica of `replicas`; None where something else scales them.

    `is_whole` where no rank of the job or replica runs in a pod of another object: the kind is made to hold them all.
    """

    members: tuple[Pods, ...]
    replicas: int | None = 1
    is_whole: bool = False

    @property
    def pods(self) -> int:
        """Return how many pods one job or replica has."""
        return sum(member.count for member in self.members)

    @property
    def containers(self) -> tuple[Container, ...]:
        """Return the containers of one pod of each kind."""
        return tuple(container for member in self.members for container in member.containers)

    @property
    def annotations(self) -> Mapping[str, str]:
        """Return the pods' own annotations, the first member's before the others'."""
        return {name: text for member in reversed(self.members) for name, text in member.annotations.items()}


def told(pods: Pods, env: Mapping[str, str]) -> Pods:
    """Return the pods with variables that their controller adds; those that are written win."""
    containers = (replace(container, env={**env, **container.env}) for container in pods.containers)
    return replace(pods, containers=tuple(containers))


def pods_of(template: Mapping[str, Any], path: Path, count: int = 1) -> Pods:
    """Return the pods of a template that stands at that path; raises UnreadableObject."""
    spec = part_at(template, ("spec",), path)
    metadata = as_mapping(template.get("metadata") or {}, (*path, "metadata"))
    containers = as_list(spec.get("containers"), (*path, "spec", "containers"))
    return Pods(
        count=count,
        containers=tuple(
            _container(container, (*path, "spec", "containers", str(number)))
            for number, container in enumerate(containers)
        ),
        spec=spec,
        annotations=annotations_of({"metadata": metadata}),
    )


def _container(value: Any, path: Path) -> Container:
    container = as_mapping(value, path)
    return Container(
        name=str(container.get("name", "")),
        image=str(container.get("image", "")),
        command=as_texts(container.get("command"), (*path, "command")),
        args=as_texts(container.get("args"), (*path, "args")),
        env=_plain_env(container.get("env"), (*path, "env")),
        resources=as_mapping(container.get("resources") or {}, (*path, "resources")),
        pointer=pointer(path),
        definition=container,
    )


def _plain_env(value: Any, path: Path) -> Mapping[str, str]:
    entries = (as_mapping(entry, (*path, str(number))) for number, entry in enumerate(as_list(value, path)))
    return {str(entry.get("name")): entry["value"] for entry in entries if isinstance(entry.get("value"), str)}
