"""Which GPUs are meant, how many, and what of them is spoken for."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator

from plimsoll.planners.ground.hardware import Gpu, GpuCount, Hardware, Network
from plimsoll.planners.ground.ranges import MOST_GPUS
from plimsoll.service.requests.values import (
    ByteCount,
    Degree,
    Dollars,
    GpusPerNode,
    Name,
    PositiveByteCount,
    Rate,
    Wire,
)

MOST_FLEET = 16
MOST_OVERSUBSCRIPTION = 1_000.0

# The formats that the catalogue gives rates for, and those that planners ask for.
RateFormat: TypeAlias = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "int8", "int4", "mxfp4", "nvfp4"]
PeakRates: TypeAlias = Annotated[dict[RateFormat, Rate], Field(min_length=1)]


class GpuOverride(Wire):
    """Figures that replace those of a catalogue entry; rates are dense and for one direction."""

    name: Name | None = None
    memory_bytes: PositiveByteCount | None = None
    memory_bytes_per_second: Rate | None = None
    peak_flops_per_second: PeakRates | None = None
    link_bytes_per_second: Rate | None = None
    link_kind: Name | None = None
    pcie_bytes_per_second: Rate | None = None
    nic_bytes_per_second: Rate | None = None
    gpus_per_node: GpusPerNode | None = None


class GpuByHand(Wire):
    """A GPU that no catalogue lists, with every figure given; the shape of `GET /hardware/{id}`."""

    id: Name = "by-hand"
    name: Name = "GPU by hand"
    memory_bytes: PositiveByteCount
    memory_bytes_per_second: Rate
    peak_flops_per_second: PeakRates
    link_bytes_per_second: Rate
    link_kind: Name = "unnamed"
    pcie_bytes_per_second: Rate
    nic_bytes_per_second: Rate
    gpus_per_node: GpusPerNode
    gpus_per_host: GpusPerNode | None = None
    source: Annotated[str, Field(max_length=2_000)] = "given in the request"
    aliases: Annotated[list[Name], Field(max_length=100, default_factory=list)]
    assumptions: Annotated[list[Annotated[str, Field(max_length=2_000)]], Field(max_length=100, default_factory=list)]

    def to_gpu(self) -> Gpu:
        """Return the planners' value of it."""
        figures = self.model_dump(exclude={"aliases", "assumptions"})
        return Gpu(**figures, aliases=tuple(self.aliases), assumptions=tuple(self.assumptions))


class GpuRange(Wire):
    """Any number of GPUs between the two."""

    min: Degree = 1
    max: Degree = MOST_GPUS

    @model_validator(mode="after")
    def _must_be_a_range(self) -> GpuRange:
        if self.min > self.max:
            raise ValueError(f"has a min of {self.min:,}, which is more than its max of {self.max:,}")
        return self


def _gpu_form(value: Any) -> str | None:
    if isinstance(value, str):
        return "(id)"
    return "(figures)" if isinstance(value, dict | GpuByHand) else None


def _count_form(value: Any) -> str | None:
    if isinstance(value, int | float):
        return "(number)"
    return "(range)" if isinstance(value, dict | GpuRange) else None


GpuRef: TypeAlias = Annotated[
    Annotated[Name, Tag("(id)")] | Annotated[GpuByHand, Tag("(figures)")],
    Discriminator(
        _gpu_form,
        custom_error_type="gpu_form",
        custom_error_message="Should be a GPU's name, or an object with its figures",
    ),
]
GpusRef: TypeAlias = Annotated[
    Annotated[Degree, Tag("(number)")] | Annotated[GpuRange, Tag("(range)")],
    Discriminator(
        _count_form,
        custom_error_type="count_form",
        custom_error_message="Should be a whole number, or an object with min and max",
    ),
]


class NetworkPart(Wire):
    """A network of pods: full rate between the GPUs of one, 1/`oversubscription` of it beyond."""

    gpus_per_pod: Degree
    oversubscription: Annotated[float, Field(ge=1, le=MOST_OVERSUBSCRIPTION)]


class OneHardware(Wire):
    """GPUs of one kind. Without `gpus`, the fewest that will do are sought."""

    gpu: GpuRef
    cluster: Annotated[
        Name | None,
        Field(
            description="A cluster of `GET /hardware` by id or alias, which must hold this `gpu`: its GPUs per node, "
            "link and network rates take the place of the GPU's own, and its host memory is a node's, unless given "
            "here or under `override`."
        ),
    ] = None
    gpus: GpusRef | None = None
    gpus_per_node: GpusPerNode | None = None
    override: GpuOverride | None = None
    reserve_bytes: ByteCount = 0
    used_bytes: ByteCount = 0
    usd_per_gpu_hour: Dollars | None = None
    nvme_bytes_per_second: Annotated[
        Rate | None,
        Field(
            description="What one GPU's share of its machine's NVMe drives reads and writes. Given, the search may "
            "leave states on the drives where `offload_target` is left open."
        ),
    ] = None

    host_memory_bytes: Annotated[
        PositiveByteCount | None,
        Field(
            description="Host memory of one whole node, which no training plan may exceed; the `cluster`'s where one "
            "is named. Absent: taken from the catalogue's clusters with this `gpu`. A plan that not all of them have "
            "memory for is `tight`, and one that none of them has it for does not fit."
        ),
    ] = None

    network: Annotated[
        NetworkPart | None,
        Field(description="Absent: every network card reaches every other at its full rate, each on its own rail."),
    ] = None

    def to_hardware(self, gpu: Gpu, *, free_maximum: int) -> Hardware:
        """Return the planners' value of it; `gpu` is resolved and overridden already.

        `free_maximum` is how many GPUs are tried at most where no number is given.
        """
        return Hardware(
            gpu=gpu,
            gpus=self._count(free_maximum),
            gpus_per_node=self.gpus_per_node or gpu.gpus_per_node,
            reserve_bytes=self.reserve_bytes,
            used_bytes=self.used_bytes,
            usd_per_gpu_hour=self.usd_per_gpu_hour,
            nvme_bytes_per_second=self.nvme_bytes_per_second,
            host_memory_bytes=self.host_memory_bytes,
            network=None if self.network is None else Network(**self.network.model_dump()),
        )

    def _count(self, free_maximum: int) -> GpuCount:
        if self.gpus is None:
            return GpuCount(minimum=1, maximum=free_maximum, is_free=True)
        if isinstance(self.gpus, GpuRange):
            return GpuCount(minimum=self.gpus.min, maximum=self.gpus.max)
        return GpuCount(minimum=self.gpus, maximum=self.gpus)


class Fleet(Wire):
    """Several kinds of GPUs, each planned for and ranked."""

    fleet: Annotated[list[OneHardware], Field(min_length=1, max_length=MOST_FLEET)]


def _hardware_form(value: Any) -> str:
    if isinstance(value, Fleet):
        return "(fleet)"
    return "(fleet)" if isinstance(value, dict) and "fleet" in value else "(one)"


HardwareRequest: TypeAlias = Annotated[
    Annotated[OneHardware, Tag("(one)")] | Annotated[Fleet, Tag("(fleet)")], Discriminator(_hardware_form)
]
