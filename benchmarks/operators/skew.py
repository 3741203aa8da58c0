"""How well surfaces of evenly routed experts price uneven routing: read at the touched experts and the rank's rows.

    python -m benchmarks.operators.skew FOLDER

compares them with the rows drawn from power laws, which no surface was fitted on, and writes `docs/operators.md`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks.operators.measurements import MILLISECONDS, Rows, expert_groups, numbers
from benchmarks.operators.report import spread, write_block
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.operators import experts
from plimsoll.planners.operators.routing import Popularity, Routing, busiest_part, touched
from plimsoll.planners.operators.surface import FloatArray

LAWS = {f"power_law_{exponent}": Routing(popularity=Popularity.DRAWN, exponent=exponent) for exponent in (1.01, 1.2)}
# Rows of which one in so many is compared: there are 1.8 million.
THINNED = 11


def main(folder: Path) -> None:
    """Write one line for each kernel: errors of time over measured, all ranks' experts on one GPU and divided."""
    found: defaultdict[tuple[str, str], list[tuple[FloatArray, ...]]] = defaultdict(list)
    for gpu, (engine, _, variant), group in expert_groups(folder, *LAWS):
        number_format, kind, owner = variant.split(",")
        priced = experts.experts(
            catalogue().gpu(gpu.id), engine, number_format, is_gated=kind == experts.GATED, kernels=(owner,)
        )
        if priced.evidence.variant == variant and priced.evidence.engine == engine and priced.evidence.is_own_card:
            thin = {name: column[::THINNED] for name, column in group.items()}
            found[engine, variant].append(_compared(priced, thin))
    head = f"{'engine':14}{'variant':34}{'rows':>8}{'uneven':>16}{'read as even':>16}{'8 ranks and more':>18}"
    lines = [_line(key, found[key]) for key in sorted(found)]
    write_block("skew", [head, *lines])


def _compared(priced: experts.Experts, rows: Rows) -> tuple[FloatArray, ...]:
    """Return time over measured by uneven routing, the same read as even routing, and the ranks of each row."""
    t, h, i, k, e, tp, ep, ms = numbers(rows, "tokens", "hidden", "inter", "topk", "experts", "tp", "ep", "ms")
    uneven, busy = np.empty_like(t), np.empty_like(t)
    keys = np.array([t, k, e, ep, rows["distribution"] == "power_law_1.2"])
    for law in np.unique(keys[1:], axis=1).T:
        at = np.flatnonzero((keys[1:] == law[:, None]).all(axis=0))
        routing = list(LAWS.values())[int(law[3])]
        uneven[at] = touched(t[at], law[1], law[0], law[2], routing)
        busy[at] = busiest_part(t[at], law[1], law[0], law[2], routing) * t[at] * k[at]
    estimate = priced.seconds(uneven, busy, h, i / tp) * MILLISECONDS / ms
    even = np.minimum(e / ep, np.maximum(t * k / ep, 1.0))
    return estimate, priced.seconds(even, t * k / ep, h, i / tp) * MILLISECONDS / ms, ep


def _line(key: tuple[str, str], parts: list[tuple[FloatArray, ...]]) -> str:
    uneven, even, ranks = (np.concatenate(column) for column in zip(*parts, strict=True))
    many = spread(uneven[ranks >= 8])
    return f"{key[0]:14}{key[1]:34}{len(uneven):>8,}{spread(uneven):>16}{spread(even):>16}{many:>18}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
