"""Serving engines: what each version does by default, read from data files."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.serving.engine_rules import (
    BatchTier,
    CacheRule,
    Capabilities,
    CompressedLayout,
    LatentCaches,
    MemoryRule,
    NonTorchMemory,
    Reserve,
    TokenPoolRules,
    TokensWording,
)

ENGINES_FOLDER = Path(__file__).parent / "engines"
GIB = 2**30
# Stands in a list of model types for all of them.
ANY = "any"

KNOWN_ENGINES = ("vllm", "sglang", "tensorrt-llm", "transformers")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """One engine version. `sources` names where its figures come from.

    `unifies_pages` says whether layers of unlike pages share a pool, `chunks_locally`
    whether chunked attention frees what its chunk has left behind. A sequence takes
    `recurrent_blocks` of each group of recurrent layers, and where `states_bound_sequences` the engine does not start
    with a batch limit beyond its blocks. With `quantizes_after_loading` a checkpoint in 16 bits is loaded whole
    before any of it is quantized; models of the types
    `recurrent_fp32`, or all where that is `any`, keep the recurrence's memory in fp32,
    others in their own dtype. `pads_pages` says whether a page that no whole number of
    others fills is padded; `divides_contexts` whether there is decode context
    parallelism. `gpu_memory_utilization` is None where the engine derives it, and
    `reserve` says from what. `timed_as` names the engine's efficiencies, None if
    its speed is not described. `compressed_layout` is how it lays DeepSeek-V4's cache out.
    Sparse latents have blocks of `sparse_block_size` tokens, None where of `block_size` like all others.
    The sampler takes `sampler_bytes_per_logit` beside the logits, and keeps at most
    `sampler_scratch_rows` rows of the vocabulary in fp32.
    """

    engine: str
    version: str
    memory_rule: MemoryRule
    gpu_memory_utilization: float | None
    block_size: int
    block_sizes: tuple[int, ...]
    kv_dtypes: tuple[str, ...]
    cache_implementations: tuple[str, ...]
    tokens_wording: TokensWording
    cache_rule: CacheRule
    compressed_layout: CompressedLayout
    latents: LatentCaches
    pool_rules: TokenPoolRules
    capabilities: Capabilities
    timed_as: str | None
    reserve: Reserve | None
    cuda_graphs_in_budget: bool
    subtracts_null_block: bool
    unifies_pages: bool
    pads_pages: bool
    divides_contexts: bool
    chunks_locally: bool
    recurrent_blocks: int
    states_bound_sequences: bool
    quantizes_after_loading: bool
    sparse_block_size: int | None
    recurrent_fp32: tuple[str, ...]
    sampler_bytes_per_logit: float
    sampler_scratch_rows: int
    overlapping_batches: int
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
    if engine not in KNOWN_ENGINES:
        raise InvalidQuestion(
            f"{engine[:40]!r} is no serving engine; known are {', '.join(KNOWN_ENGINES)}.", pointer="/serving/engine"
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


def is_older(version: str, other: str) -> bool:
    """Return whether a version came before another."""
    return _order(version) < _order(other)


def versions_with_changes(engine: str) -> tuple[str, ...]:
    """Return the versions from which on an engine's rules differ from those before, the oldest first."""
    return tuple(revision["from"] for revision in read_table(engine)["revision"])


def _unknown_version(engine: str, version: str | None) -> InvalidQuestion:
    oldest, *_, newest = known_versions(engine)
    return InvalidQuestion(
        f"{engine} {str(version)[:40]!r} is not known; known are {oldest} to {newest}.",
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
def read_table(name: str) -> Mapping[str, Any]:
    """Return a data file of the engines folder, read once."""
    with (ENGINES_FOLDER / f"{name}.toml").open("rb") as file:
        return tomllib.load(file)


@cache
def _profile(engine: str, version: str) -> EngineProfile:
    table = read_table(engine)
    merged: dict[str, Any] = {}
    sources: list[str] = []
    for revision in table["revision"]:
        if _order(revision["from"]) <= _order(version):
            merged.update({name: _changed(merged.get(name), value) for name, value in revision.items()})
            sources.append(revision["source"])
    non_torch = merged["non_torch_gib"]
    return EngineProfile(
        engine=engine,
        version=version,
        memory_rule=MemoryRule(merged["memory_rule"]),
        gpu_memory_utilization=merged.get("gpu_memory_utilization"),
        block_size=merged["block_size"],
        block_sizes=tuple(merged["block_sizes"]),
        kv_dtypes=tuple(merged["kv_dtypes"]),
        cache_implementations=tuple(merged.get("cache_implementations", ())),
        tokens_wording=TokensWording(merged["tokens_wording"]),
        cache_rule=CacheRule(merged["cache_rule"]),
        compressed_layout=CompressedLayout(merged.get("compressed_layout", "none")),
        latents=LatentCaches(**_frozen(merged["latents"])),
        pool_rules=TokenPoolRules(**_frozen(merged.get("pools", {}))),
        capabilities=Capabilities(**merged.get("capabilities", {})),
        timed_as=merged.get("timed_as"),
        reserve=Reserve(**merged["reserve_mib"]) if "reserve_mib" in merged else None,
        cuda_graphs_in_budget=merged.get("cuda_graphs_in_budget", False),
        subtracts_null_block=merged.get("subtracts_null_block", False),
        unifies_pages=merged.get("unifies_pages", False),
        pads_pages=merged.get("pads_pages", False),
        divides_contexts=merged.get("divides_contexts", False),
        chunks_locally=merged.get("chunks_locally", False),
        recurrent_blocks=merged.get("recurrent_blocks", 1),
        states_bound_sequences=merged.get("states_bound_sequences", False),
        quantizes_after_loading=merged.get("quantizes_after_loading", False),
        sparse_block_size=merged.get("sparse_block_size"),
        recurrent_fp32=tuple(merged.get("recurrent_fp32", ())),
        sampler_bytes_per_logit=merged.get("sampler_bytes_per_logit", 0.0),
        sampler_scratch_rows=merged.get("sampler_scratch_rows", 0),
        overlapping_batches=merged.get("overlapping_batches", 1),
        batch_tiers=tuple(BatchTier(**{**tier, "excludes": tuple(tier["excludes"])}) for tier in merged["batch_tiers"]),
        non_torch=NonTorchMemory(
            single_bytes=round(non_torch["single"] * GIB),
            pipeline_bytes=round(non_torch["pipeline"] * GIB),
            tensor_bytes=round(non_torch["tensor"] * GIB),
        ),
        sources=tuple(sources),
    )


def _changed(before: object, after: object) -> object:
    """Return a value as a revision leaves it: of a table only what it names changes."""
    return {**before, **after} if isinstance(before, dict) and isinstance(after, dict) else after


def _frozen(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with its lists as tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
