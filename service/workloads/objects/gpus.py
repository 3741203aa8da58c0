"""How many GPUs a pod asks for, and of which kind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.planners.catalogue import Catalogue
from plimsoll.planners.ground.errors import UnknownCluster, UnknownGpu
from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.ground.units import MIB
from plimsoll.planners.serving.releases.cards import is_amd
from plimsoll.service.workloads.objects.pods import Container, Pods

NVIDIA_RESOURCE, AMD_RESOURCE = "nvidia.com/gpu", "amd.com/gpu"
# What NVIDIA's plugin calls GPUs shared in time where it is told to rename them (sharing.timeSlicing.renameByDefault).
SHARED_RESOURCE = "nvidia.com/gpu.shared"
GPU_RESOURCES = (NVIDIA_RESOURCE, SHARED_RESOURCE, AMD_RESOURCE)
# HAMi's share of each GPU, in MiB or in hundredths of the card, which the engine sees as the whole card.
MEMORY_RESOURCE, MEMORY_PERCENTAGE_RESOURCE = "nvidia.com/gpumem", "nvidia.com/gpumem-percentage"
PERCENT = 100
# Shares of GPUs by other schedulers: Volcano's, Alibaba's, Tencent's, Run:ai's.
OTHER_SHARES = re.compile(r"^(?:volcano\.sh/vgpu|aliyun\.com/gpu|tencent\.com/vcuda|run\.ai/|4paradigm\.com/vgpu)")
# GKE: a slice of a card by its profile, and cards that several pods take.
GKE_PARTITION_LABEL, GKE_SHARING_LABEL = (
    "cloud.google.com/gke-gpu-partition-size",
    "cloud.google.com/gke-gpu-sharing-strategy",
)
MIG_RESOURCE = re.compile(r"^nvidia\.com/mig-(?P<profile>[0-9a-z.+-]+)$")
# AMD's device plugin names a GPU's partitions where it is told to (resource_naming_strategy mixed); spx is the whole.
AMD_PARTITION_RESOURCE = re.compile(r"^amd\.com/(?P<profile>(?:spx|dpx|qpx|cpx)_nps[0-9])$")
WHOLE_PARTITION = "spx_nps1"
# Labels whose value is a GPU's name: NVIDIA's feature discovery, AMD's labeller, GKE, EKS, Karpenter.
NVIDIA_PRODUCT_LABEL, AMD_PRODUCT_LABEL = "nvidia.com/gpu.product", "amd.com/gpu.product-name"
PRODUCT_LABELS = (
    NVIDIA_PRODUCT_LABEL,
    AMD_PRODUCT_LABEL,
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
)
# Labels whose value is a machine's type, which is a cluster of the catalogue.
MACHINE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
# What feature discovery adds to the name of a card shared in time, or cut into equal slices (strategy "single").
SHARED_SUFFIX = re.compile(r"-(?:SHARED|MIG-(?P<profile>[0-9a-z.+-]+?)(?:-SHARED)?)$", re.IGNORECASE)
# How a driver's own name for a card begins; a catalogue entry has it among its aliases.
DRIVER_NAME = re.compile(r"^(?P<vendor>NVIDIA|Tesla|AMD) ")
# Of more GPUs to choose from a review has no time to judge each.
MOST_CHOICES = 4
WHOLE_NUMBER = re.compile(r"^[0-9]{1,6}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDemand:
    """GPUs of one pod; `gpu` is a catalogue id, None where nothing says, and `unknown` what was said then.

    `choices` are the GPUs among which an affinity leaves the choice.

    `mig_profile` is set where the pod asks for slices of that profile, and `partition`
    where it asks for an AMD GPU's. `memory_bytes` is what it is given of each card where
    a scheduler divides cards by memory, and `is_shared` says that others run on it too.
    """

    gpus_per_pod: int
    gpu: str | None
    unknown: str | None
    mig_profile: str | None
    partition: str | None = None
    memory_bytes: int | None = None
    is_shared: bool = False
    choices: tuple[str, ...] = ()


def container_gpus(container: Container) -> int | None:
    """Return the GPUs of one container, slices counted as such; None where the number cannot be read.

    Extended resources are never overcommitted: the limit is the request.
    """
    total = 0
    for amounts in (container.resources.get("limits"), container.resources.get("requests")):
        if amounts is None:
            continue
        if not isinstance(amounts, dict):
            return None
        for resource, amount in amounts.items():
            if _is_gpu(str(resource)):
                text = str(amount)
                if not WHOLE_NUMBER.match(text):
                    return None
                total += int(text)
        if total:
            return total
    return total


def claims_devices(container: Container) -> bool:
    """Return whether a container takes devices by a resource claim, which is an object of its own."""
    return bool(container.resources.get("claims"))


def _is_gpu(resource: str) -> bool:
    return resource in GPU_RESOURCES or bool(MIG_RESOURCE.match(resource) or AMD_PARTITION_RESOURCE.match(resource))


def gpu_resource(gpu: Gpu) -> str:
    """Return the extended resource by which a pod asks for that GPU."""
    return AMD_RESOURCE if is_amd(gpu) else NVIDIA_RESOURCE


def product_selector(gpu: Gpu) -> dict[str, str]:
    """Return the node label that names the GPU, empty where the catalogue lacks its driver's name.

    NVIDIA's feature discovery writes the driver's name with hyphens, AMD's labeller
    with underscores: a label's value has no spaces.
    """
    names = [alias for alias in gpu.aliases if DRIVER_NAME.match(alias)]
    if not names:
        return {}
    if is_amd(gpu):
        return {AMD_PRODUCT_LABEL: names[-1].replace(" ", "_")}
    return {NVIDIA_PRODUCT_LABEL: names[-1].replace(" ", "-")}


def gpu_demand(pods: Pods, container: Container, catalogue: Catalogue) -> GpuDemand:
    """Return what a container asks for, and which GPU its pod's nodes must have."""
    gpu, unknown, sliced = _kind(pods.spec, catalogue)
    choices, unlisted = _choices(pods.spec, catalogue) if gpu is None and unknown is None else ((), None)
    labels = dict(_required_labels(pods.spec))
    is_shared = GKE_SHARING_LABEL in labels or any(label.endswith("-SHARED") for label in labels.values())
    partition = _profile(container, AMD_PARTITION_RESOURCE)
    return GpuDemand(
        gpus_per_pod=container_gpus(container) or 0,
        gpu=gpu,
        unknown=unknown or unlisted,
        choices=choices,
        mig_profile=_profile(container, MIG_RESOURCE) or sliced or labels.get(GKE_PARTITION_LABEL),
        partition=None if partition == WHOLE_PARTITION else partition,
        memory_bytes=_memory_bytes(container, None if gpu is None else catalogue.gpu(gpu)),
        is_shared=is_shared or SHARED_RESOURCE in _limits(container),
    )


def _limits(container: Container) -> Mapping[str, Any]:
    limits = container.resources.get("limits")
    return limits if isinstance(limits, dict) else {}


def _memory_bytes(container: Container, gpu: Gpu | None) -> int | None:
    """Return the memory of each card that a container is given, None where it has them whole or it cannot be read."""
    amounts = {name: str(_limits(container).get(name, "")) for name in (MEMORY_RESOURCE, MEMORY_PERCENTAGE_RESOURCE)}
    if WHOLE_NUMBER.match(amounts[MEMORY_RESOURCE]):
        return int(amounts[MEMORY_RESOURCE]) * MIB or None
    percentage = amounts[MEMORY_PERCENTAGE_RESOURCE]
    if gpu is None or not WHOLE_NUMBER.match(percentage) or not 0 < int(percentage) < PERCENT:
        return None
    return gpu.memory_bytes * int(percentage) // PERCENT


def takes_other_share(container: Container) -> str | None:
    """Return the resource by which a container takes a share of a GPU that this service does not read."""
    return next((str(name)[:80] for name in _limits(container) if OTHER_SHARES.match(str(name))), None)


def _profile(container: Container, resource: re.Pattern[str]) -> str | None:
    for amounts in (container.resources.get("limits"), container.resources.get("requests")):
        matches = (resource.match(str(name)) for name in (amounts if isinstance(amounts, dict) else {}))
        found = next((match["profile"] for match in matches if match), None)
        if found is not None:
            return found
    return None


def _kind(spec: Mapping[str, Any], catalogue: Catalogue) -> tuple[str | None, str | None, str | None]:
    """Return the first GPU that a selector or a required affinity names, or a name that the catalogue lacks.

    Third comes the profile of slices that the name tells of.
    """
    unknown = None
    for label, value in _required_labels(spec):
        suffix = SHARED_SUFFIX.search(value)
        name = value if suffix is None else value[: suffix.start()]
        try:
            if label in PRODUCT_LABELS:
                return catalogue.gpu(name).id, None, None if suffix is None else suffix["profile"]
            if label in MACHINE_LABELS:
                return catalogue.cluster(name).gpu, None, None
        except (UnknownGpu, UnknownCluster):
            unknown = unknown or f"{label}={value}"
    return None, unknown, None


def _required_labels(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the labels that a node must have. A choice of several values names no one kind, so none is yielded."""
    selector = spec.get("nodeSelector")
    if isinstance(selector, dict):
        yield from ((str(label), value) for label, value in selector.items() if isinstance(value, str))
    terms = _required_terms(spec)
    for label, values in _listed(terms[0]) if len(terms) == 1 else ():
        if len(values) == 1:
            yield label, values[0]


def _required_terms(spec: Mapping[str, Any]) -> list[Any]:
    value: Any = spec
    for step in ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"):
        value = value.get(step) if isinstance(value, dict) else None
    return value if isinstance(value, list) else []


def _listed(term: object) -> Iterator[tuple[str, list[str]]]:
    """Yield the labels of a term of an affinity with the values that each may have."""
    expressions = term.get("matchExpressions") if isinstance(term, dict) else None
    for expression in expressions if isinstance(expressions, list) else ():
        values = expression.get("values") if isinstance(expression, dict) else None
        if isinstance(values, list) and values and expression.get("operator") == "In":
            yield str(expression.get("key")), [str(value) for value in values]


def _choices(spec: Mapping[str, Any], catalogue: Catalogue) -> tuple[tuple[str, ...], str | None]:
    """Return the GPUs that a required affinity leaves to choose from, or a name of them that the catalogue lacks.

    A term that names none leaves every GPU to choose from, which is no choice that can be judged.
    """
    found: list[str] = []
    for term in _required_terms(spec):
        named = next(((label, values) for label, values in _listed(term) if label in PRODUCT_LABELS), None)
        if named is None:
            return (), None
        for value in named[1]:
            try:
                found.append(catalogue.gpu(value).id)
            except UnknownGpu:
                return (), f"{named[0]}={value}"
    choices = tuple(dict.fromkeys(found))
    return (choices, None) if len(choices) <= MOST_CHOICES else ((), None)
