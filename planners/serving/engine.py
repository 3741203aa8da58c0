"""Serving engines: what each version does by default, read from data files."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from planners.errors import InvalidQuestion, NotYetAvailable
from planners.hardware import Gpu

ENGINES_FOLDER = Path(__file__).parent / "engines"
GIB = 2**30
FP32_BYTES = 4

KNOWN_ENGINES = ("vllm", "sglang", "tensorrt-llm", "transformers")
DESCRIBED_ENGINES = ("vllm",)


class TokensWording(StrEnum):
    """What the engine means by the number of tokens it logs for its cache."""

    BLOCKS_TIMES_SIZE = "blocks_times_size"
    BLOCKS_PER_GROUP = "blocks_per_group"
    CONCURRENCY_TIMES_LENGTH = "concurrency_times_length"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTier:
    """Batch limits of cards with at least `memory_gib`, whose names hold no excluded word."""

    memory_gib: float
    excludes: tuple[str, ...]
    max_num_batched_tokens: int
    max_num_seqs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NonTorchMemory:
    """Bytes a worker holds outside torch: alone, in a pipeline, with tensor parallelism."""

    single_bytes: int
    pipeline_bytes: int
    tensor_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """One engine version. `sources` names where its figures come from.

    `unifies_pages` says whether layers of unlike pages share a pool, `chunks_locally`
    whether chunked attention frees what its chunk has left behind. A sequence takes
    `recurrent_blocks` of each group of recurrent layers; models of the types
    `recurrent_fp32` keep the recurrence's memory in fp32, others in their own dtype.
    """

    engine: str
    version: str
    gpu_memory_utilization: float
    block_size: int
    block_sizes: tuple[int, ...]
    kv_dtypes: tuple[str, ...]
    tokens_wording: TokensWording
    cuda_graphs_in_budget: bool
    subtracts_null_block: bool
    unifies_pages: bool
    chunks_locally: bool
    recurrent_blocks: int
    recurrent_fp32: tuple[str, ...]
    sampler_bytes_per_logit: float
    overlapping_batches: int
    batch_tiers: tuple[BatchTier, ...]
    non_torch: NonTorchMemory
    sources: tuple[str, ...]

    def recurrent_memory_bytes(self, model_type: str, activation_bytes: int) -> int:
        """Return the bytes of one element of a recurrence's memory."""
        return FP32_BYTES if model_type in self.recurrent_fp32 else activation_bytes

    def batch_tier(self, gpu: Gpu) -> BatchTier:
        """Return the batch limits this version chooses on `gpu`."""
        name = f"{gpu.id} {gpu.name}".lower()
        for tier in self.batch_tiers:
            if gpu.memory_bytes >= tier.memory_gib * GIB and not any(word in name for word in tier.excludes):
                return tier
        return self.batch_tiers[-1]


def engine_profile(engine: str, version: str | None) -> EngineProfile:
    """Return what `engine` does at `version`, the newest known one by default.

    A patch number is allowed and ignored. Raises `InvalidQuestion` for names
    nobody knows and `NotYetAvailable` for an engine that has no data file.
    """
    if engine not in KNOWN_ENGINES:
        raise InvalidQuestion(
            f"{engine[:40]!r} is no serving engine; known are {', '.join(KNOWN_ENGINES)}.", pointer="/serving/engine"
        )
    if engine not in DESCRIBED_ENGINES:
        raise NotYetAvailable(
            f"The engine {engine} is not described yet; {', '.join(DESCRIBED_ENGINES)} is.", pointer="/serving/engine"
        )
    table = read_table(engine)
    versions: list[str] = table["versions"]
    wanted = versions[-1] if version is None else minor_version(version)
    if wanted not in versions:
        raise InvalidQuestion(
            f"{engine} {str(version)[:40]!r} is not known; known are {versions[0]} to {versions[-1]}.",
            pointer="/serving/engine_version",
        )
    return _profile(engine, wanted)


def minor_version(version: str) -> str:
    """Return `0.19` for `0.19`, `v0.19.1` and `0.19.1rc2`."""
    return ".".join(version.strip().lower().removeprefix("v").split(".")[:2])


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
            merged.update(revision)
            sources.append(revision["source"])
    non_torch = merged["non_torch_gib"]
    return EngineProfile(
        engine=engine,
        version=version,
        gpu_memory_utilization=merged["gpu_memory_utilization"],
        block_size=merged["block_size"],
        block_sizes=tuple(merged["block_sizes"]),
        kv_dtypes=tuple(merged["kv_dtypes"]),
        tokens_wording=TokensWording(merged["tokens_wording"]),
        cuda_graphs_in_budget=merged["cuda_graphs_in_budget"],
        subtracts_null_block=merged["subtracts_null_block"],
        unifies_pages=merged["unifies_pages"],
        chunks_locally=merged["chunks_locally"],
        recurrent_blocks=merged["recurrent_blocks"],
        recurrent_fp32=tuple(merged["recurrent_fp32"]),
        sampler_bytes_per_logit=merged["sampler_bytes_per_logit"],
        overlapping_batches=merged["overlapping_batches"],
        batch_tiers=tuple(BatchTier(**{**tier, "excludes": tuple(tier["excludes"])}) for tier in merged["batch_tiers"]),
        non_torch=NonTorchMemory(
            single_bytes=round(non_torch["single"] * GIB),
            pipeline_bytes=round(non_torch["pipeline"] * GIB),
            tensor_bytes=round(non_torch["tensor"] * GIB),
        ),
        sources=tuple(sources),
    )


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
