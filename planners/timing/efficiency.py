"""Measured efficiencies: what of each datasheet rate real work reaches, from data files.

Three things decide: the GPU's generation (`gpus/*.toml`), the training stack (`timing.toml` of its folder in
`planners/stacks`, with what it inherits), and what is the same everywhere (`efficiencies.toml`). Every file names where
its figures come from.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from plimsoll.planners.ground.data_files import read_toml, record
from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.stacks.folders import TIMING, shipped
from plimsoll.planners.stacks.profile import load_profile, textbook

FOLDER = Path(__file__).parent
# A card of no known generation is taken for this file, which says so.
UNKNOWN_GENERATION = "other"
# What of a stack on a card was timed: runs of both, of other stacks on the card, none on the card, or the site's own.
TimedRuns: TypeAlias = Literal["stack_on_gpu", "other_stacks_on_gpu", "none_on_gpu", "own"]
UNTIMED_GPU: Final = "none_on_gpu"
# Cards that clients describe have ids of their own.
MOST_KEPT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEfficiency:
    """What kernels of one GPU generation reach of the datasheet; fractions are above 0 and at most 1.

    A matrix product runs at `matmul_peak_fraction` of the peak when its sides
    are long, at `low_precision_peak_fraction` in formats of a byte and less; with
    `measured_sizes` others are as much slower as measured ones (`products.py`).
    """

    name: str
    ids: tuple[str, ...]
    provenance: str
    matmul_peak_fraction: float
    low_precision_peak_fraction: float
    measured_sizes: bool
    attention_peak_fraction: float
    memory_bandwidth_fraction: float
    link_fraction: float
    network_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledRuns:
    """How many of a stack's measured runs stalled, of those with a pipeline or without, and at least so large.

    A plan is told of the first that it is like.
    """

    with_pipeline: bool
    nodes: int
    tensor_parallel: int
    memory_fraction: float
    runs: int
    stalled: int
    described: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StackEfficiency:
    """How one training stack runs those kernels.

    `low` and `high` are the band of models without experts, `expert_low` and
    `expert_high` of those with, for `band_reason`. `measured_on` are the cards of the runs
    that were fitted. Two layouts of one job whose estimates are within `tie_fraction` of each
    other (`expert_tie_fraction` with experts) are not told apart (`planners/timing/ties.py`).
    `expert_weight_multiple` is how often an expert's weights and gradients cross memory
    in a micro-batch over the least (read in both passes, the gradient added).
    `traffic_multiple` is how often the kernels that the stack was measured with
    (`measured_kernels`, a name of `planners/timing/fusion.py`)
    read and write each tensor. `host_layer_seconds` is what the host needs to launch one layer's
    forward and backward pass for one micro-batch (`host_expert_layer_seconds` where
    experts are routed to); `host_collective_seconds` adds
    to it for each tensor-parallel collective and each node that it spans, and
    `host_rank_seconds` for each tensor-parallel rank where there is a
    pipeline over several nodes too. `gather_overlap_fraction` is what of the gathering of updated
    weights hides behind the next forward pass.
    `network_fraction` multiplies the GPU's own, `data_hop_multiple` the common latency of a hop between nodes.
    `attention_multiple` is the speed of the stack's attention kernel beside the generation's best.
    `measured_tensor_overlap` says whether runs of the stack itself show how much of tensor-parallel traffic hides.
    Tensor-parallel traffic overlaps only under sequence parallelism, which is when
    it comes in pieces that matrix products can wait for one by one.
    `expert_overlap_cost_fraction` is what computation loses of the time of an exchange with experts beside it, where a
    layout hides that (`planners/timing/experts.py`).
    `exposed_sends` counts the sends of a micro-batch across a stage's boundary
    that nothing hides. `gather_calls` is how many calls gather one layer's
    weights. `adds_gradients_in_products` marks stacks whose weight-gradient
    products add to the sum as they write. `stall_seconds` is what a stage
    waits for each neighbour in every micro-batch in the stack's slow mode, which only the
    upper bound includes; `stalled_runs` count the measured runs in it (`planners/timing/stalls.py`).
    """

    name: str
    measured: bool
    measured_on: tuple[str, ...]
    provenance: str
    band_reason: str
    low: float
    high: float
    expert_low: float
    expert_high: float
    tie_fraction: float
    expert_tie_fraction: float
    traffic_multiple: float
    measured_kernels: str
    expert_weight_multiple: float
    host_layer_seconds: float
    host_expert_layer_seconds: float
    host_collective_seconds: float
    host_rank_seconds: float
    step_seconds: float
    data_overlap_fraction: float
    gather_overlap_fraction: float
    tensor_overlap_fraction: float
    measured_tensor_overlap: bool
    expert_overlap_fraction: float
    expert_overlap_cost_fraction: float
    exposed_sends: float
    gather_calls: int
    adds_gradients_in_products: bool
    network_fraction: float
    data_hop_multiple: float
    attention_multiple: float
    stall_seconds: float
    stalled_runs: tuple[StalledRuns, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonEfficiency:
    """What neither card nor stack changes: latencies, the backward pass's factors, the host, untimed cards."""

    coverage: float
    untimed_gpu_low: float
    untimed_gpu_high: float
    untimed_gpu_expert_low: float
    untimed_gpu_expert_high: float
    attention_backward_multiple: float
    launch_seconds: float
    link_hop_seconds: float
    network_hop_seconds: float
    host_memory_bytes_per_second: float
    pcie_fraction: float
    nvme_bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """All efficiencies of one stack on one card; `timed_runs` says what they were fitted to."""

    gpu: GpuEfficiency
    stack: StackEfficiency
    common: CommonEfficiency
    timed_runs: TimedRuns

    def band(self, *, experts: bool) -> tuple[float, float]:
        """Return the multiples of the estimate between which a step is expected, at the stated coverage.

        On a card without timed runs that is no less than other cards took whose runs no fit saw.
        """
        stack, common = self.stack, self.common
        low, high = (stack.expert_low, stack.expert_high) if experts else (stack.low, stack.high)
        if self.timed_runs != UNTIMED_GPU:
            return low, high
        untimed_low = common.untimed_gpu_expert_low if experts else common.untimed_gpu_low
        untimed_high = common.untimed_gpu_expert_high if experts else common.untimed_gpu_high
        return min(low, untimed_low), max(high, untimed_high)

    @property
    def provenance(self) -> str:
        """Return where the figures come from, in whole sentences."""
        return f"{self.stack.provenance} {self.gpu.provenance}"

    @property
    def memory_bandwidth_fraction(self) -> float:
        """Return what element-wise kernels reach of the memory's rate."""
        return self.gpu.memory_bandwidth_fraction


@functools.lru_cache(maxsize=MOST_KEPT)
def load_efficiency(framework: str | None = None, gpu_id: str = "") -> Efficiency:
    """Return the efficiencies of a framework, by default the textbook's, on a card of the catalogue.

    A card of no listed generation is timed like `gpus/other.toml`, which says so in its provenance. Raises
    `UnknownName` for a framework that nobody knows.
    """
    gpus = _gpus()
    generation = next((gpu for gpu in gpus.values() if gpu_id.startswith(gpu.ids)), gpus[UNKNOWN_GENERATION])
    stack = _stack(framework or textbook().name)
    return Efficiency(gpu=generation, stack=stack, common=_common(), timed_runs=_timed_runs(stack, gpu_id))


def _timed_runs(stack: StackEfficiency, gpu_id: str) -> TimedRuns:
    """Return what of a pair was timed. Where no card is named none is called untimed."""
    if gpu_id in stack.measured_on:
        return "stack_on_gpu"
    return "other_stacks_on_gpu" if not gpu_id or gpu_id in timed_cards() else UNTIMED_GPU


@functools.cache
def timed_cards() -> frozenset[str]:
    """Return the cards of the runs that the efficiencies of any stack were fitted to."""
    return frozenset(card for name in shipped().names() for card in _stack(name).measured_on)


def shipped_generations() -> tuple[GpuEfficiency, ...]:
    """Return the efficiencies of every GPU generation of which timed runs were fitted."""
    return tuple(gpu for gpu in _gpus().values() if any(card.startswith(gpu.ids) for card in timed_cards()))


def efficiency_on(framework: str, hardware: Hardware) -> Efficiency:
    """Return the efficiencies of a framework on these GPUs, the site's own measurements in the place of what ships."""
    shipped, site = load_efficiency(framework, hardware.gpu.id), hardware.site
    if site is None:
        return shipped
    measured: dict[str, Any] = {**site.fractions, "provenance": f"The GPU's rates are {site.provenance}."}
    gpu = replace(shipped.gpu, **measured)
    timed_runs = "own" if site.fractions or site.spread else shipped.timed_runs
    return replace(
        shipped,
        timed_runs=timed_runs,
        gpu=gpu,
        stack=_with_spread(shipped.stack, site.spread.get(shipped.stack.name, 1.0)),
    )


def _with_spread(stack: StackEfficiency, spread: float) -> StackEfficiency:
    """Return the stack with its bands and ties `spread` times as wide on a logarithmic scale."""
    return replace(
        stack,
        low=stack.low**spread,
        high=stack.high**spread,
        expert_low=stack.expert_low**spread,
        expert_high=stack.expert_high**spread,
        tie_fraction=(1 + stack.tie_fraction) ** spread - 1,
        expert_tie_fraction=(1 + stack.expert_tie_fraction) ** spread - 1,
    )


@functools.cache
def _gpus() -> Mapping[str, GpuEfficiency]:
    tables = map(read_toml, sorted((FOLDER / "gpus").glob("*.toml")))
    return {table["name"]: record(GpuEfficiency, table) for table in tables}


@functools.cache
def _stack(name: str) -> StackEfficiency:
    table = shipped().table(load_profile(name).name, TIMING)
    return record(StackEfficiency, {**table, "name": name})


@functools.cache
def _common() -> CommonEfficiency:
    return record(CommonEfficiency, read_toml(FOLDER / "efficiencies.toml"))


def network_hop_seconds() -> float:
    """Return the time that a message's start takes from one node to another."""
    return _common().network_hop_seconds
