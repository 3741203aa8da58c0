"""Ask the service of the working tree and that of another commit the same, and say where their answers differ."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.same_answers.asking import Answer, ask_all
from benchmarks.same_answers.comparing import Difference, differences
from benchmarks.same_answers.corrections import Correction, read_corrections
from benchmarks.same_answers.kept import keep, kept_file, read_kept
from benchmarks.same_answers.questions import Question, chosen, read_questions
from benchmarks.same_answers.running import git, running_service, write_tree

MAIN = "main"
MOST_SHOWN = 5
MOST_CHARACTERS = 160


def main() -> int:
    """Compare, print, and return the exit status: 1 where any answer differs that no correction names."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.same_answers", description=__doc__)
    options.add_argument("--ref", help=f"the other commit; default: the one where this branch left {MAIN}")
    options.add_argument("--only", help="numbers of questions, between commas; default: all")
    options.add_argument("--most-shown", type=int, default=MOST_SHOWN, help="places shown of one answer")
    given = options.parse_args()
    commit = git("rev-parse", f"{given.ref}^{{commit}}") if given.ref else git("merge-base", MAIN, "HEAD")
    questions = read_questions()
    if given.only:
        questions = chosen(questions, map(int, given.only.split(",")))
    print(f"{len(questions):,} questions to the working tree and to {commit[:10]}.", flush=True)
    before, after = both(commit, questions)
    found = {question.number: differences(before[question.number], after[question.number]) for question in questions}
    return report(questions, found, read_corrections(), before, most_shown=given.most_shown)


def both(commit: str, questions: Sequence[Question]) -> tuple[dict[int, Answer], dict[int, Answer]]:
    """Return the answers of a commit, kept ones where there are any, and those of the working tree."""
    file = kept_file(commit)
    before = read_kept(file)
    with tempfile.TemporaryDirectory(prefix="same-answers-") as folder, ThreadPoolExecutor() as threads:
        of_commit = None if before else threads.submit(_of_commit, commit, questions, Path(folder))
        after = threads.submit(_of_tree, Path.cwd(), questions, Path(folder) / "working").result()
        if of_commit is not None:
            before = of_commit.result()
            if len(questions) == len(read_questions()):
                keep(file, before)
    return before or {}, after


def _of_commit(commit: str, questions: Sequence[Question], folder: Path) -> dict[int, Answer]:
    tree = folder / "tree"
    write_tree(commit, tree)
    return _of_tree(tree, questions, folder / "other")


def _of_tree(root: Path, questions: Sequence[Question], data_dir: Path) -> dict[int, Answer]:
    began_at = time.monotonic()
    with running_service(root, data_dir) as url:
        answers = ask_all(url, questions)
    print(f"{data_dir.name} tree: {time.monotonic() - began_at:.0f} s", flush=True)
    return answers


def report(
    questions: Sequence[Question],
    found: Mapping[int, Sequence[Difference]],
    corrections: Sequence[Correction],
    answers: Mapping[int, Answer],
    *,
    most_shown: int,
) -> int:
    """Print every difference that no correction names, and counts by route; return the exit status."""
    asked, unequal, meant, well = (Counter[str]() for _ in range(4))
    for question in questions:
        unnamed = [
            each for each in found[question.number] if not any(one.covers(question.number, each) for one in corrections)
        ]
        asked[question.route] += 1
        well[question.route] += answers[question.number].status < 300
        unequal[question.route] += bool(unnamed)
        meant[question.route] += bool(found[question.number]) and not unnamed
        if unnamed:
            print_differences(question, unnamed, most_shown)
    print(f"\n{'route':<44} asked  2xx  differ  corrected")
    for route in sorted(asked):
        print(f"{route:<44} {asked[route]:5} {well[route]:4} {unequal[route]:7} {meant[route]:10}")
    print(f"{'all':<44} {asked.total():5} {well.total():4} {unequal.total():7} {meant.total():10}")
    for correction in corrections:
        if not any(correction.covers(number, each) for number, places in found.items() for each in places):
            print(f"No answer differs any more as this correction says: {correction.reason}")
    return 1 if unequal.total() else 0


def print_differences(question: Question, places: Sequence[Difference], most_shown: int) -> None:
    """Print the first places where one answer differs, with both values."""
    print(f"\n{question.number}: {question.route} ({question.kind}), {len(places)} places")
    for place in places[:most_shown]:
        letters = enumerate(zip(place.before, place.after, strict=False))
        alike = next((number for number, (one, other) in letters if one != other), 0)
        begin = max(0, alike - MOST_CHARACTERS // 2)
        print(f"  {place.pointer or '(whole)'}")
        print(f"    before {_from(place.before, begin)}\n    now    {_from(place.after, begin)}")


def _from(value: str, begin: int) -> str:
    """Return so much of a value as is shown, from a little before where the two differ."""
    end = begin + MOST_CHARACTERS
    return f"{'…' if begin else ''}{value[begin:end]}{'…' if len(value) > end else ''}"


if __name__ == "__main__":
    sys.exit(main())
