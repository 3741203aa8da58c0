"""What of a group of pods runs together on GPUs: one container of every pod, and the commands they start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from plimsoll.planners.catalogue import Catalogue
from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.service.engines.engine import serving_launch, started_programs
from plimsoll.service.engines.nodes import is_given_others_address
from plimsoll.service.stacks.commands import training_launch
from plimsoll.service.workloads.commands.launches import CannotRun, Launch, NotRead, Read
from plimsoll.service.workloads.objects.gpus import (
    GpuDemand,
    claims_devices,
    container_gpus,
    gpu_demand,
    takes_other_share,
)
from plimsoll.service.workloads.objects.pods import Container, PodGroup, Pods

# `ray start`, and vLLM's own scripts around it (examples/online_serving, examples/ray_init.sh): the engine that is
# started next finds the GPUs of a whole Ray cluster.
RAY = re.compile(r"(?:^|/)(?:ray|ray_init\.sh|multi-node-serving\.sh|run_cluster\.sh)$")
# What lets a script give each of its programs GPUs of its own.
OWN_GPUS = ("VISIBLE_DEVICES", "base-gpu-id", "base_gpu_id")
# After these what a script started before may have ended.
ENDING = frozenset({"wait", "kill", "pkill", "killall"})
# A container that asks for no GPU is shown those that this variable names (NVIDIA Container Toolkit).
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
SHOWN = re.compile(r"^(?:all|[0-9][0-9,]*|GPU-[0-9a-f,GPU-]+)$")
# The program, or the script that a shell runs.
MOST_RAY_WORDS = 2


class UnreadableGpus(PlimsollError):
    """How many GPUs a container asks for, or which, is not written in the object."""

    code = "unreadable-gpus"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Containers that make one job or one replica: `gpus` over all `pods`, `containers` those that may start it.

    `is_whole` where no rank of it runs in a pod of another object.
    """

    gpus: int
    pods: int
    is_whole: bool
    demand: GpuDemand
    containers: tuple[Container, ...]

    def launches(self) -> tuple[Read, ...]:
        """Return what the first container that starts something known launches, nothing where none does.

        Those that ask for GPUs come first.
        """
        for container in self.containers:
            found = tuple(self._launches_of(container))
            if found:
                return found
        return ()

    def beside(self) -> tuple[Launch, ...]:
        """Return what containers launch that ask for no GPU of their own and are shown those of the node."""
        shown = (container for container in self.containers if SHOWN.match(container.env.get(VISIBLE_DEVICES, "")))
        found = (launch for container in shown if not _gpus(container) for launch in self._launches_of(container))
        return tuple(launch for launch in found if isinstance(launch, Launch) and not launch.is_conditional)

    def _launches_of(self, container: Container) -> Iterator[Read]:
        joins_ray = joins_others = False
        cohort = 0
        texts = (*container.command, *container.args, *container.files.values())
        names_gpus = any(mark in text for text in texts for mark in OWN_GPUS)
        for program in started_programs(container):
            words, container = program.words, program.container
            if PurePosixPath(words[0]).name in ENDING:
                cohort += 1
            if any(RAY.search(word) for word in words[:MOST_RAY_WORDS]):
                joins_ray, joins_others = True, joins_others or is_given_others_address(words)
            launch = serving_launch(words, container, gpus=self.demand.gpus_per_pod) or training_launch(
                words,
                self.gpus,
                container,
                gpus_per_pod=self.demand.gpus_per_pod,
                mpi_processes=program.mpi_processes,
            )
            if isinstance(launch, Launch):
                yield replace(
                    launch,
                    is_conditional=program.is_conditional,
                    spans_pods=launch.spans_pods
                    or (launch.kind == "infer" and (joins_ray or program.mpi_processes is not None)),
                    is_elsewhere=launch.is_elsewhere or joins_others,
                    gpus_per_node=None if joins_ray and launch.nodes is None else launch.gpus_per_node,
                    cohort=None if names_gpus or program.is_conditional else cohort,
                )
                cohort += not program.is_background
            elif isinstance(launch, CannotRun):
                yield replace(launch, is_conditional=program.is_conditional)
            elif launch is not None:
                missing = not_at_hand(container)
                yield NotRead(reason=f"{launch.reason}. {missing}") if missing else launch


def not_at_hand(*containers: Container) -> str:
    """Return which ConfigMaps of containers could not be read and why, an empty text where there is none."""
    missing = dict.fromkeys(reason for container in containers for reason in container.unread)
    return f"Not read: {'; '.join(missing)}" if missing else ""


def nothing_read(lane: Lane) -> str:
    """Return why nothing of a lane was read: a program nobody knows here, or one that the object leaves away."""
    names = ", ".join(dict.fromkeys(container.name[:60] for container in lane.containers))
    asking = [container for container in lane.containers if _gpus(container)]
    if any(container.command for container in lane.containers):
        return f"container {names} starts nothing this service can read"
    image = next((container.image for container in asking if container.image), "")
    left = f"its image ({image[:100]})" if image else "its runtime"
    return f"container {names} leaves its command to {left}, which this service cannot look into"


def lanes(group: PodGroup, catalogue: Catalogue) -> tuple[Lane, ...]:
    """Return the lanes of a group, none where it asks for no GPUs.

    The first holds every pod's first container with GPUs, the next every pod's second.
    Containers without GPUs stand in the first: a launcher's pod starts what runs in the others.
    Raises UnreadableGpus.
    """
    with_gpus = [[container for container in pods.containers if _gpus(container)] for pods in group.members]
    found = []
    for place in range(max((len(containers) for containers in with_gpus), default=0)):
        taken = [
            (pods, containers[place])
            for pods, containers in zip(group.members, with_gpus, strict=True)
            if place < len(containers) and pods.count
        ]
        if taken:
            others = () if place else tuple(container for container in group.containers if not _gpus(container))
            found.append(_lane(taken, others, catalogue, is_whole=group.is_whole))
    return tuple(found)


def _lane(
    taken: list[tuple[Pods, Container]], others: tuple[Container, ...], catalogue: Catalogue, *, is_whole: bool
) -> Lane:
    demands = [gpu_demand(pods, container, catalogue) for pods, container in taken]
    gpus = sorted({demand.gpu for demand in demands if demand.gpu is not None})
    if len(gpus) > 1:
        raise UnreadableGpus(f"Its pods run on different GPUs ({' and '.join(gpus)}).")
    slices = {(demand.mig_profile, demand.partition, demand.memory_bytes) for demand in demands}
    if len(slices) > 1:
        raise UnreadableGpus("Its pods take different shares of their GPUs.")
    unknown = next((demand.unknown for demand in demands if demand.unknown), None)
    if gpus and unknown is not None:
        raise UnreadableGpus(f"Its pods run on different GPUs ({gpus[0]} and {unknown}).")
    # Ranks of one job run on one kind of GPU: pods that name none run on the one that the others name.
    largest = max(demands, key=lambda demand: demand.gpus_per_pod)
    return Lane(
        pods=sum(pods.count for pods, _ in taken),
        is_whole=is_whole,
        gpus=sum(pods.count * demand.gpus_per_pod for (pods, _), demand in zip(taken, demands, strict=True)),
        demand=replace(largest, gpu=gpus[0] if gpus else None, unknown=unknown),
        containers=(*(container for _, container in taken), *others),
    )


def _gpus(container: Container) -> int:
    count = container_gpus(container)
    if count is None:
        raise UnreadableGpus(f"The GPUs of container {container.name[:60]} are no whole number.")
    if not count and claims_devices(container):
        raise UnreadableGpus(f"Container {container.name[:60]} takes its devices by a resource claim.")
    share = takes_other_share(container)
    if not count and share is not None:
        raise UnreadableGpus(f"Container {container.name[:60]} takes a share of a GPU by {share}, which is not read.")
    return count
