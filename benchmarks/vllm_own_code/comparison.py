"""A case's plan beside what vLLM's own code says of it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from benchmarks.vllm_own_code.blocks import OwnCache, own_cache
from benchmarks.vllm_own_code.cases import Case
from benchmarks.vllm_own_code.layers import layers_bytes
from benchmarks.vllm_own_code.planned import Planned, planned
from benchmarks.vllm_own_code.rank import own_rank
from benchmarks.vllm_own_code.weights import HeldBytes, held_bytes

# What both lay a cache out of: no whole number of any block.
AVAILABLE_BYTES = 50_000_000_017


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A plan, and what a rank of vLLM's own model holds and makes of the bytes for its cache."""

    case: Case
    plan: Planned
    held: HeldBytes
    cache: OwnCache
    layers_bytes: int | None

    def facts(self) -> dict[str, Any]:
        """Return what vLLM's code said, for those who have it not."""
        return {
            "case": self.case.name,
            "held": dataclasses.asdict(self.held),
            "cache": dataclasses.asdict(self.cache),
            **({} if self.layers_bytes is None else {"layers_bytes": self.layers_bytes}),
        }


def compared(case: Case) -> Compared:
    """Return a case's plan beside a rank of vLLM's."""
    plan = planned(case, AVAILABLE_BYTES)
    with own_rank(case.config, tensor_parallel=case.tensor_parallel, **case.engine_options) as rank:
        return Compared(
            case=case,
            plan=plan,
            held=held_bytes(rank),
            cache=own_cache(rank, AVAILABLE_BYTES),
            layers_bytes=layers_bytes(rank) if case.runs_layers else None,
        )
