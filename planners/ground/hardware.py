"""A GPU, and the machine it sits in, as the planners see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# By how a card's id begins. Source: https://developer.nvidia.com/cuda-gpus
COMPUTE_CAPABILITIES = {
    "v100": 7.0,
    "t4": 7.5,
    **dict.fromkeys(("a100", "a30", "a800"), 8.0),
    **dict.fromkeys(("a10", "a10g", "a40", "rtx-3090", "rtx-a5000", "rtx-a6000"), 8.6),
    **dict.fromkeys(("l4", "l40", "l40s", "rtx-4090", "rtx-6000-ada"), 8.9),
    **dict.fromkeys(("gh200", "h100", "h20", "h200", "h800"), 9.0),
    **dict.fromkeys(("b200", "gb200"), 10.0),
    **dict.fromkeys(("b300", "gb300"), 10.3),
    **dict.fromkeys(("rtx-5090", "rtx-pro-6000"), 12.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU's datasheet facts.

    `memory_bytes` is what the driver reports and not the name on the box (an
    H100-80GB reports 79.19 GiB). Rates are dense and per direction:
    `peak_flops_per_second` by number format, `link_bytes_per_second` to the other
    GPUs of the node (NVLink, Infinity Fabric, or PCIe where there is no other),
    `pcie_bytes_per_second` to the host, `nic_bytes_per_second` to other nodes. Where links span
    the hosts of a node, each has `gpus_per_host`.
    """

    id: str
    name: str
    memory_bytes: int
    memory_bytes_per_second: float
    peak_flops_per_second: Mapping[str, float]
    link_bytes_per_second: float
    link_kind: str
    pcie_bytes_per_second: float
    nic_bytes_per_second: float
    gpus_per_node: int
    source: str
    aliases: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = field(default=())
    gpus_per_host: int | None = None


def compute_capability(gpu: Gpu) -> float | None:
    """Return the compute capability of an NVIDIA card, None of another's and of one that is not listed."""
    return next((value for name, value in COMPUTE_CAPABILITIES.items() if gpu.id.startswith(f"{name}-")), None)


def has_bf16(gpu: Gpu) -> bool:
    """Return whether a GPU computes in bf16: of NVIDIA's those of compute capability 8.0 and higher, AMD's all."""
    return "bf16" in gpu.peak_flops_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCount:
    """How many GPUs may be used: `minimum` to `maximum`, or as few as will do.

    A fixed number has both ends equal. `is_free` means that the client named no
    number and wants the fewest that fit.
    """

    minimum: int
    maximum: int
    is_free: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteServing:
    """What a site measured an engine to take of the times that ship, by groups of terms, and how wide its bands are.

    `factors` multiply; the spreads are as many times the shipped bands' width on a logarithmic scale.
    """

    factors: Mapping[str, float]
    token_spread: float
    first_token_spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteEfficiency:
    """What a site measured its own GPUs of one kind to reach, in place of what ships.

    `fractions` replaces figures of the GPU's efficiencies by their names. `spread`
    has, by training stack, how many times as wide as the shipped one the band about
    a step's time is on a logarithmic scale. `serving` has what was measured of engines,
    by what their speed is known as. `revision` names the exact values.
    """

    revision: str
    fractions: Mapping[str, float]
    spread: Mapping[str, float]
    provenance: str
    serving: Mapping[str, SiteServing] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network of pods: full rate between the `gpus_per_pod` GPUs of one, 1/`oversubscription` of it beyond.

    In a pod each network card is on a rail with those of the same place in every node, and every pair of nodes at
    full rate; so it is everywhere where no pods are named.
    """

    gpus_per_pod: int
    oversubscription: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The GPUs a plan may use, what of each is already spoken for, and what the site measured of them.

    `nvme_bytes_per_second` is one GPU's share of its machine's drives, and `host_memory_bytes` all that its node has
    of host memory; None where unknown.
    """

    gpu: Gpu
    gpus: GpuCount
    gpus_per_node: int
    reserve_bytes: int = 0
    used_bytes: int = 0
    usd_per_gpu_hour: float | None = None
    site: SiteEfficiency | None = None
    nvme_bytes_per_second: float | None = None
    network: Network | None = None
    host_memory_bytes: int | None = None

    @property
    def gpus_per_host(self) -> int:
        """Return the GPUs of a machine: those of a node, or fewer where links span several."""
        return min(self.gpus_per_node, self.gpu.gpus_per_host or self.gpus_per_node)

    @property
    def limit_bytes(self) -> int:
        """Return what one GPU offers after the reserve and other tenants."""
        return self.gpu.memory_bytes - self.reserve_bytes - self.used_bytes
