"""Trace a few plans of one stack, and say whose code ran: `python -m benchmarks.proofs_of megatron`.

The plans are of the grid that planner and trace are compared over (`benchmarks/agreement.py`), evenly chosen.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from benchmarks.agreement import Case, compare, grid
from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.stacks.found import traced_stacks

GIB = 1 << 30
MOST_PLANS = 8
BESIDE_STEPS = ("companions", "evaluation")


def chosen(cases: Iterable[Case], stack: str, most: int) -> list[Case]:
    """Return so many of a stack's plans at most, from the first on as far apart as can be.

    The last ones have, where a plan does, a model beside the one that learns, and evaluations between steps.
    """
    own = [case for case in cases if case.way["framework"] == stack]
    rare = [next((case for case in own if part in case.way), None) for part in BESIDE_STEPS]
    kept = [case for case in rare if case is not None][: most - 1]
    plain = [case for case in own if not any(part in case.way for part in BESIDE_STEPS)]
    return plain[:: max(-(-len(plain) // (most - len(kept))), 1)] + kept


def lines(cases: Sequence[Case]) -> Iterable[str]:
    """Yield a line for each plan, those that the same code ran beneath its name and version."""
    yield f"{'plan':76} {'planned':>9} {'traced':>9}  distance"
    rows: list[tuple[str, str]] = []
    for case in cases:
        try:
            row = compare(case)
        except NotYetAvailable as refusal:
            rows.append(("Not traced", f"{case.name:76} {refusal}"))
            continue
        planned, traced = row["predicted_bytes"] / GIB, row["traced_bytes"] / GIB
        rows.append((row["ran"], f"{case.name:76} {planned:9.3f} {traced:9.3f}  {row['relative_error']:+.2%}"))
        rows += [(row["ran"], line) for line in _stages(row["stages"])]
    for ran, of_code in groupby(sorted(rows, key=lambda row: row[0]), key=lambda row: row[0]):
        yield f"{ran}:"
        yield from (line for _, line in of_code)


def _stages(stages: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Yield a line for each stage of a pipeline that was traced: its layers, in each chunk."""
    for stage in stages if len(stages) > 1 else ():
        planned, traced = stage["predicted_bytes"] / GIB, stage["traced_bytes"] / GIB
        layers = " + ".join(str(count) for count in stage["layers"])
        name = f"    stage {stage['stage']} with layers: {layers}"
        yield f"{name:76} {planned:9.3f} {traced:9.3f}  {planned / traced - 1:+.2%}"


def main(arguments: list[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proofs_of", description=__doc__)
    parser.add_argument("stack", choices=[stack.name for stack in traced_stacks()])
    parser.add_argument("--only", default="", help="plans whose name has this in it")
    parser.add_argument("--plans", type=int, default=MOST_PLANS, help="how many at most")
    asked = parser.parse_args(arguments)
    for line in lines(chosen((case for case in grid() if asked.only in case.name), asked.stack, asked.plans)):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
