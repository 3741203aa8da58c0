"""Serving engines: what each version does by default, read from data files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.ground.data_files import overlaid, record
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.serving.releases.rules import (
    BatchTier,
    Capabilities,
    Checkpoints,
    CompressedLayout,
    DegreeRules,
    LatentCaches,
    NonTorchMemory,
    Reserve,
    Scheduling,
    TokenPoolRules,
    TokensWording,
)
from plimsoll.planners.serving.releases.tables import known_engines, read_efficiency, read_table

# Stands in a list of model types for all of them.
ANY = "any"
NUMBERS = re.compile(r"v?(\d{1,6}(?:\.\d{1,6})+)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """One engine version. `sources` names where its figures come from, `title` is its maker's spelling of its name.

    `unifies_pages` says whether layers of unlike pages share a pool, `chunks_locally`
    whether chunked attention frees what its chunk has left behind. A sequence takes
    `recurrent_blocks` of each group of recurrent layers and one more for `checkpoints`, and
    where `states_bound_sequences` the engine does not start with a batch limit beyond its
    blocks. With `quantizes_after_loading` a checkpoint in 16 bits is loaded whole before any
    of it is quantized; models of the types
    `recurrent_fp32`, or all where that is `any`, keep the recurrence's memory in fp32,
    others in their own dtype. `pads_pages` says whether a page that no whole number of
    others fills is padded; `divides_contexts` whether there is decode context
    parallelism. `gpu_memory_utilization` is None where the engine derives it, and
    `reserve` says from what. `timed_as` names the engine's efficiencies, None if
    its speed is not described. Ranks with whole experts send each token to those of its own by
    `domain_exchange` among cards with NVLink to one another and by `network_exchange` beyond, as in
    `operators/exchanges.py`; None where they gather all. `compressed_layout` is how it lays DeepSeek-V4's cache out.
    Sparse latents have blocks of `sparse_block_size` tokens, None where of `block_size` like all others.
    The sampler takes `sampler_bytes_per_logit` beside the logits, and keeps at most
    `sampler_scratch_rows` rows of the vocabulary in fp32. With `profiles_latent_contexts`
    its profiling run expands the longest chunk of earlier latents; `latent_workspace_bytes` are
    kept for their kernels beside the weights. Its working memory
    follows start-up logs on `logged_gpu`, None where none were read. A cache in
    nvfp4 `nvfp4_cache_needs_nvlink` where only kernels for Blackwell's cards with NVLink read it.
    `four_bit_weights` is the format of 4 bits in which it commonly serves a model. With `overlaps_host` the host
    prepares a step while the card is at the one before. `scheduling` is how steps are filled.
    """

    engine: str
    version: str
    title: str
    gpu_memory_utilization: float | None = None
    block_size: int
    block_sizes: tuple[int, ...]
    kv_dtypes: tuple[str, ...]
    cache_implementations: tuple[str, ...]
    tokens_wording: TokensWording
    compressed_layout: CompressedLayout
    latents: LatentCaches
    pools: TokenPoolRules
    capabilities: Capabilities
    timed_as: str | None
    domain_exchange: str | None = None
    network_exchange: str | None = None
    reserve: Reserve | None = None
    cuda_graphs_in_budget: bool
    subtracts_null_block: bool
    unifies_pages: bool
    pads_pages: bool
    divides_contexts: bool
    chunks_locally: bool
    recurrent_blocks: int
    checkpoints: Checkpoints
    states_bound_sequences: bool
    quantizes_after_loading: bool
    sparse_block_size: int | None = None
    profiles_latent_contexts: bool
    latent_workspace_bytes: int
    logged_gpu: str | None = None
    nvfp4_cache_needs_nvlink: bool
    computes_encoder_prompts_whole: bool
    four_bit_weights: str
    degrees: DegreeRules
    recurrent_fp32: tuple[str, ...]
    sampler_bytes_per_logit: float
    sampler_scratch_rows: int
    overlapping_batches: int
    overlaps_host: bool
    scheduling: Scheduling
    batch_tiers: tuple[BatchTier, ...]
    non_torch: NonTorchMemory
    sources: tuple[str, ...]

    def recurrent_memory_bytes(self, model_type: str, activation_bytes: int) -> int:
        """Return the bytes of one element of a recurrence's memory."""
        return FP32_BYTES if _names(self.recurrent_fp32, model_type) else activation_bytes

    def expands_latents(self, model_type: str) -> bool:
        """Return whether a model's latents are cached as full keys and values."""
        return _names(self.latents.expanded_types, model_type)

    def batch_tier(self, gpu: Gpu) -> BatchTier:
        """Return the batch limits this version chooses on `gpu`."""
        name = f"{gpu.id} {gpu.name}".lower()
        for tier in self.batch_tiers:
            if gpu.memory_bytes >= tier.memory_gib * GIB and not any(word in name for word in tier.excludes):
                return tier
        return self.batch_tiers[-1]


def _names(types: tuple[str, ...], model_type: str) -> bool:
    return ANY in types or model_type in types


def engine_profile(engine: str, version: str | None) -> EngineProfile:
    """Return what `engine` does at `version`, the newest known one by default.

    A patch number is allowed; it counts where an engine's patches differ, and one newer
    than those known is taken as the newest. Raises `InvalidQuestion` for names nobody knows.
    """
    if engine not in known_engines():
        raise InvalidQuestion(
            f"{engine[:40]!r} is no serving engine; known are {', '.join(known_engines())}.", pointer="/serving/engine"
        )
    table = read_table(engine)
    versions: list[str] = table["versions"]
    wanted = versions[-1] if version is None else minor_version(version)
    if wanted not in versions:
        raise _unknown_version(engine, version)
    if "newest_patch" not in table:
        return _profile(engine, wanted)
    oldest, newest = table["oldest_patch"], table["newest_patch"]
    patch = newest if version is None else _patch(version, newest)
    if patch < oldest:
        raise _unknown_version(engine, version)
    return _profile(engine, f"{wanted}.{min(patch, newest)}")


def known_versions(engine: str) -> tuple[str, ...]:
    """Return every version of an engine that is told apart, the oldest first."""
    table = read_table(engine)
    versions: list[str] = table["versions"]
    if "newest_patch" not in table:
        return tuple(versions)
    return tuple(f"{versions[-1]}.{patch}" for patch in range(table["oldest_patch"], table["newest_patch"] + 1))


def cache_implementations() -> tuple[str, ...]:
    """Return the caches that engines have which choose among several."""
    newest = (engine_profile(engine, None) for engine in known_engines())
    return tuple(dict.fromkeys(name for profile in newest for name in profile.cache_implementations))


def is_older(version: str, other: str) -> bool:
    """Return whether a version came before another."""
    return _order(version) < _order(other)


def versions_with_changes(engine: str) -> tuple[str, ...]:
    """Return the versions from which on an engine's rules differ from those before, the oldest first."""
    return tuple(revision["from"] for revision in read_table(engine)["revision"])


def _unknown_version(engine: str, version: str | None) -> InvalidQuestion:
    oldest, *_, newest = known_versions(engine)
    numbers = NUMBERS.match(str(version).strip().lower())
    nearest = "" if numbers is None else f" The nearest is {oldest if is_older(numbers[1], oldest) else newest}."
    return InvalidQuestion(
        f"{engine} {str(version)[:40]!r} is not known; known are {oldest} to {newest}.{nearest}",
        pointer="/serving/engine_version",
    )


def minor_version(version: str) -> str:
    """Return `0.19` for `0.19`, `v0.19.1` and `0.19.1rc2`."""
    return ".".join(version.strip().lower().removeprefix("v").split(".")[:2])


def _patch(version: str, newest: int) -> int:
    """Return the third number of a version, the newest where there is none."""
    numbers = re.match(r"v?\d+\.\d+\.(\d{1,6})", version.strip().lower(), re.ASCII)
    return newest if numbers is None else int(numbers[1])


@cache
def _profile(engine: str, version: str) -> EngineProfile:
    table = read_table(engine)
    revisions = [each for each in table["revision"] if _order(each["from"]) <= _order(version)]
    merged: dict[str, Any] = {}
    for revision in revisions:
        merged = overlaid(merged, {**revision, "batch_tiers": _tiers(merged.get("batch_tiers", ()), revision)})
    del merged["from"], merged["source"]
    speed, non_torch = read_efficiency(engine), merged.pop("non_torch_gib")
    return record(
        EngineProfile,
        {
            **merged,
            "engine": engine,
            "title": table["title"],
            "version": version,
            "sources": [revision["source"] for revision in revisions],
            "timed_as": None if speed is None else speed["timed_as"],
            "degrees": table["degrees"],
            "non_torch": {f"{ranks}_bytes": round(amount * GIB) for ranks, amount in non_torch.items()},
        },
    )


def _tiers(before: Sequence[Mapping[str, Any]], revision: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the batch tiers with those of a revision in place of the ones for as much memory, the largest first."""
    tiers = {tier["memory_gib"]: tier for tier in (*before, *revision.get("batch_tiers", ()))}
    return [tiers[memory] for memory in sorted(tiers, reverse=True)]


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
