"""Compare the planners with the public measurements.

    python -m benchmarks.accuracy [memory] [time] [serving] [--write] [--cases STACK | --write-cases]

Training rows are bodies of `POST /plan/train` with the layout fixed, asked of the service in this process.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmarks.accuracy.asking import Service
from benchmarks.accuracy.document import Section, measured_on, write_sections
from benchmarks.accuracy.peak_memory.cases import memory_cases
from benchmarks.accuracy.peak_memory.measured_cases_file import MEASURED_CASES, write_measured_cases
from benchmarks.accuracy.peak_memory.predictions import memory_predictions
from benchmarks.accuracy.peak_memory.report import case_lines, memory_sections, outcome, verdict_section
from benchmarks.accuracy.serving.report import serving_sections
from benchmarks.accuracy.step_time.predictions import step_time_sections, timed_outcomes

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"


def main() -> None:
    """Print the tables that were asked for, or set them into the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"{', '.join(SUBJECTS)}; all when left away")
    parser.add_argument("--write", action="store_true", help=f"set the tables into {PAGE.name} as well")
    parser.add_argument("--cases", metavar="STACK", help="list every memory case of one stack, worst first")
    parser.add_argument(
        "--write-cases", action="store_true", help="write the measured cases that plans name as nearest"
    )
    arguments = parser.parse_args()
    unknown = set(arguments.subjects) - set(SUBJECTS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: known are {', '.join(SUBJECTS)}")
    if arguments.write_cases or arguments.cases is not None:
        _memory_cases(arguments.cases, write=arguments.write_cases)
        return
    service = Service()
    sections = [section for name in arguments.subjects or SUBJECTS for section in SUBJECTS[name](service)]
    print("\n\n".join(section.text for section in (measured_on(), *sections)))
    if arguments.write:
        write_sections(PAGE, sections)


def _memory_cases(stack: str | None, *, write: bool) -> None:
    predictions = memory_predictions(memory_cases().cases, Service())
    if stack is not None:
        print("\n".join(case_lines(predictions, stack)))
    if write:
        print(f"{write_measured_cases(predictions)} cases written to {MEASURED_CASES}")


def _memory_sections(service: Service) -> Iterator[Section]:
    cases = memory_cases()
    predictions = memory_predictions(cases.cases, service)
    yield from memory_sections(predictions, cases.left_out)
    yield verdict_section([*map(outcome, predictions), *timed_outcomes(service)])


SUBJECTS: Mapping[str, Callable[[Service], Iterator[Section]]] = {
    "memory": _memory_sections,
    "time": step_time_sections,
    "serving": lambda _: serving_sections(),
}


if __name__ == "__main__":
    main()
