"""The memory planner judged by plans drawn at random: draw them, trace them, and compare.

    python -m benchmarks.random_plans draw --set fitted --count 500
    python -m benchmarks.random_plans trace --set fitted --most 100
    python -m benchmarks.random_plans trace --again megatron
    python -m benchmarks.random_plans compare
    python -m benchmarks.random_plans show 17

`draw` and `trace` go on where they stopped; `compare` and `show` plan again what is stored, without torch. Formulas are
written by the set `fitted`; `sealed` is for judging them, and none of its plans is shown.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Iterator

from benchmarks.random_plans.comparing import compared, name_of
from benchmarks.random_plans.draw import DrawnPlan, drawn_plans
from benchmarks.random_plans.files import SETS, StoredSet
from benchmarks.random_plans.report import MOST_SHOWN, summary
from benchmarks.random_plans.running import traced_lines
from benchmarks.random_plans.showing import shown

WRITTEN_AT_ONCE = 20


def main() -> int:
    """Do what the command line says."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.random_plans",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = options.add_subparsers(dest="command", required=True)
    for name in ("draw", "trace", "compare"):
        command = commands.add_parser(name)
        command.add_argument("--set", choices=SETS, default="fitted")
        command.add_argument("--count", type=int, default=500, help="of draw: so many plans in all")
        command.add_argument("--most", type=int, help="of trace: so many plans at most")
        command.add_argument("--again", help="of trace: plans with this in their name, traced already or not")
        command.add_argument("--only", default="", help="of compare: rows with this in their name or classes")
        command.add_argument("--most-shown", type=int, default=MOST_SHOWN, help="of compare: lines shown by name")
    commands.add_parser("show").add_argument("numbers", type=int, nargs="+")
    given = options.parse_args()
    if given.command == "show":
        print("\n\n".join("\n".join(shown(SETS["fitted"], number)) for number in given.numbers))
        return 0
    stored = SETS[given.set]
    if given.command == "draw":
        draw(stored, given.count)
    elif given.command == "trace":
        trace(stored, given.most, given.again)
    else:
        compare(stored, given.only, given.most_shown)
    return 0


def draw(stored: StoredSet, count: int) -> None:
    """Draw what a set lacks of so many plans, and print what was refused."""
    known, dropped = stored.plans() if stored.plans_file.exists() else [], Counter[str]()
    new = drawn_plans(stored.seed, count - len(known), dropped, first=len(known))
    stored.write_plans([*known, *new])
    for reason, times in dropped.most_common():
        print(f"{times:6} {reason}")
    print(f"{count - len(known)} new plans of {stored.name}, {dropped.total()} refused")


def trace(stored: StoredSet, most: int | None, again: str | None) -> None:
    """Trace the plans of a set that have no line yet, or some of them anew, and print how many."""
    plans, traced = stored.plans(), {line["number"] for line in stored.lines()}
    chosen = (plan for plan in plans if (plan.number not in traced if again is None else again in name_of(plan)))
    waiting = list(itertools.islice(chosen, most))
    done = failed = 0
    for lines in _in_parts(waiting):
        stored.write_lines(lines)
        done, failed = done + len(lines), failed + sum("failed" in line for line in lines)
        print(f"{stored.name}: {done} of {len(waiting)} traced, {failed} of them failed", flush=True)


def _in_parts(plans: list[DrawnPlan]) -> Iterator[list[dict[str, object]]]:
    lines = traced_lines(plans)
    while part := list(itertools.islice(lines, WRITTEN_AT_ONCE)):
        yield part


def compare(stored: StoredSet, only: str, most_shown: int) -> None:
    """Print how a set's plans lie beside their traces, and how many have none."""
    lines = list(stored.lines())
    rows = [row for row in compared(stored.plans(), lines) if only in row.name or only in row.classes]
    if rows:
        print("\n".join(summary(rows, 0 if stored.is_sealed else most_shown)))
    failures = Counter(line["failed"] for line in lines if "failed" in line)
    print(f"\n{len(lines)} plans of {stored.name} traced, {failures.total()} without a result")
    if not stored.is_sealed:
        print("\n".join(f"{times:4} {reason}" for reason, times in failures.most_common()))


if __name__ == "__main__":
    sys.exit(main())
