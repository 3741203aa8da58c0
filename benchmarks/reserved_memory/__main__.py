"""Reserved memory by the plan, by a replay of its events and by a replay of a trace, against what was measured.

Run `python -m benchmarks.reserved_memory`: nanotron's 855 rows take minutes, and traces of the others as many.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.accuracy.peak_memory.cases import memory_cases
from benchmarks.reserved_memory import replays
from benchmarks.reserved_memory.rows import measured_row
from benchmarks.reserved_memory.table import lines, row_lines


def main(arguments: list[str]) -> int:
    """Print every row, then the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reserved_memory", description=__doc__)
    parser.add_argument("--only", default="", help="rows with this in their name")
    parser.add_argument("--every", type=int, default=1, help="every so-manieth row")
    parser.add_argument("--no-traces", action="store_true", help="without torch, in a minute")
    parser.add_argument("--replays", action="store_true", help="stored traces instead, by stack, in two minutes")
    asked = parser.parse_args(arguments)
    if asked.replays:
        print(*replays.lines(), sep="\n")
        return 0
    named = [case for case in memory_cases().cases if asked.only in case.case_id]
    rows = []
    for case in named[:: asked.every]:
        row = measured_row(case, with_trace=not asked.no_traces)
        if row is not None:
            rows.append(row)
            print(*row_lines([row]), flush=True)
    print(*lines(rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
