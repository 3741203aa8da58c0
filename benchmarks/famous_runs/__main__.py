"""Plan published trainings as they ran, and with their layout open.

    python -m benchmarks.famous_runs [--only WORD] [--write]

Every run of `benchmarks/data/famous_runs` is asked of the service in this process, three times.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.famous_runs.asking import asked_runs
from benchmarks.famous_runs.page import page_parts, write_page
from benchmarks.famous_runs.record import famous_runs

PAGE = Path(__file__).parents[2] / "docs" / "famous-runs.md"


def main() -> None:
    """Print the tables, or set them into the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.famous_runs", description=__doc__)
    parser.add_argument(
        "--only", metavar="WORD", help="runs with this word in the name of their file; they are printed"
    )
    parser.add_argument("--write", action="store_true", help=f"set all of them into docs/{PAGE.name}")
    arguments = parser.parse_args()
    if arguments.only and arguments.write:
        parser.error("--write is for all runs: leave --only out.")
    runs = [run for run in famous_runs() if (arguments.only or "") in run.slug]
    if not runs:
        parser.error(f"no run has {arguments.only!r} in the name of its file.")
    parts = page_parts(list(asked_runs(runs)))
    if arguments.write:
        write_page(PAGE, parts)
    shown = ("overview", "runs") if arguments.only else ("counts", "overview", "refused")
    print("\n\n".join(parts[name] for name in shown))


if __name__ == "__main__":
    main()
