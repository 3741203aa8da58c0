"""Whether the planner puts deployments of one model under one load in the order in which they were measured."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from benchmarks.accuracy.serving.latencies import LatencyCase

# Two measurements this near to one another say nothing of which is faster.
LEAST_APART = 1.1
COLUMNS = ("engine", "version", "model", "gpu", "precision", "tp", "pp", "attn_dp", "moe_ep")
KINDS: tuple[tuple[str, frozenset[str]], ...] = (
    ("engine", frozenset({"engine", "version"})),
    ("card", frozenset({"gpu"})),
    ("degrees", frozenset({"tp", "attn_dp", "moe_ep"})),
    ("precision", frozenset({"precision"})),
)


def ranking_lines(cases: Sequence[LatencyCase], planned: Callable[[LatencyCase], float]) -> Iterator[str]:
    """Yield, by what two deployments differ in, how many pairs are told apart and which part of them is in order."""
    yield f"{'differ in':12} {'pairs':>7} {'in order':>9}"
    pairs = list(_pairs(cases))
    for name, columns in KINDS:
        of_kind = [pair for pair in pairs if _differing(*pair) and _differing(*pair) <= columns]
        if of_kind:
            yield f"{name:12} {len(of_kind):7} {_in_order(of_kind, planned):9.0%}"
    yield f"{'anything':12} {len(pairs):7} {_in_order(pairs, planned):9.0%}"


def _pairs(cases: Sequence[LatencyCase]) -> Iterator[tuple[LatencyCase, LatencyCase]]:
    """Yield pairs of one family, lengths and number of requests whose measured times lie apart."""
    by_load: dict[object, list[LatencyCase]] = {}
    for case in cases:
        by_load.setdefault((case.family, case.traffic, case.batch), []).append(case)
    for group in by_load.values():
        for one, other in itertools.combinations(group, 2):
            times = sorted((one.token_seconds, other.token_seconds))
            if one.deployment != other.deployment and times[1] > LEAST_APART * times[0]:
                yield one, other


def _differing(one: LatencyCase, other: LatencyCase) -> set[str]:
    """Return the columns in which two deployments differ, the model's own name apart."""
    parts = zip(COLUMNS, one.deployment.split("|"), other.deployment.split("|"), strict=True)
    return {name for name, left, right in parts if left != right and name != "model"}


def _in_order(pairs: Sequence[tuple[LatencyCase, LatencyCase]], planned: Callable[[LatencyCase], float]) -> float:
    right = sum((planned(one) < planned(other)) == (one.token_seconds < other.token_seconds) for one, other in pairs)
    return right / len(pairs)
