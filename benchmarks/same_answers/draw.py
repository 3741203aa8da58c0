"""Add to the stored questions: ask the service of this tree candidates of kinds that lack any, and keep some of each.

    python -m benchmarks.same_answers.draw recorded.jsonl

Stored questions stay as they are, and keep their numbers; delete the lines of a kind to draw it anew.
`recorded.jsonl` is what `recorded` wrote.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
import psutil

from benchmarks.same_answers.asking import a_client, ask
from benchmarks.same_answers.candidates import catalogue, reviews, serving, stored, training
from benchmarks.same_answers.candidates.parts import Candidate
from benchmarks.same_answers.questions import QUESTIONS, Question, read_questions
from benchmarks.same_answers.running import running_service

SEED = 20_261_123
# Processor time, which other programs of the machine do not lengthen.
MOST_SECONDS = 0.25
MOST_CHARACTERS = 9_000
MOST_ASKED = 40
BAD_REQUEST = 400
# How many of a kind are kept, of those that are answered and of those that are refused, by how the kind begins.
ROOM = {
    "train, mixed": (50, 12), "train, compared": (15, 0), "train a layout of ": (4, 2), "train a config of ": (1, 0),
    "train with ": (2, 0), "train full by ": (2, 1), "train ": (1, 0), "serve, mixed": (40, 12),
    "serve a layout of ": (5, 2), "serve a config of ": (1, 0), "serve with ": (2, 0), "serve ": (1, 1),
    "asked by ": (7, 3), "": (1, 1),
}  # fmt: skip
PLANS_READ = 12
FILES_OF_A_NAME = 3


@dataclass(slots=True)
class Choice:
    """The candidates that are kept, and the plans among their answers."""

    client: httpx.Client
    kinds: frozenset[str]
    offered: set[str]
    kept: list[Candidate] = field(default_factory=list)
    plans: list[tuple[Candidate, dict[str, Any]]] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    counts: Counter[tuple[str, bool]] = field(default_factory=Counter)

    def offer(self, candidate: Candidate) -> None:
        """Keep a candidate of a kind that lacks such an answer, where it is a new one and costs little."""
        kind, content = candidate["kind"], _content(Question(number=0, **candidate))
        lacks_answer, lacks_refusal = (
            room > self.counts[kind, is_answered] for room, is_answered in zip(_room(kind), (True, False), strict=True)
        )
        is_lacking = kind not in self.kinds and self.asked[kind] < MOST_ASKED and (lacks_answer or lacks_refusal)
        if not is_lacking or content in self.offered or len(content) > MOST_CHARACTERS:
            return
        self.offered.add(content)
        self.asked[kind] += 1
        began_at = _processor_seconds()
        answer = ask(self.client, Question(number=1, **candidate), {})
        is_answered = answer.status < BAD_REQUEST
        is_cheap = _processor_seconds() - began_at < MOST_SECONDS
        if is_cheap and (lacks_answer if is_answered else lacks_refusal):
            self.counts[kind, is_answered] += 1
            self.kept.append(candidate)
            if candidate["path"].startswith("/plan/") and is_answered and answer.body.startswith("{"):
                self.plans.append((candidate, json.loads(answer.body)))


def main() -> None:
    """Write the questions."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.same_answers.draw", description=__doc__)
    options.add_argument("recorded", type=Path, nargs="*", help="files that `recorded` wrote")
    given = options.parse_args()
    random = Random(SEED)
    already = read_questions() if QUESTIONS.exists() else ()
    kinds = frozenset(question.kind for question in already)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_service(Path.cwd(), Path(folder) / "data") as url,
        a_client(url) as client,
    ):
        choice = Choice(client, kinds, offered={_content(question) for question in already})
        for candidate in all_candidates(random, given.recorded):
            choice.offer(candidate)
    followers = [*following(choice.plans, random), *stored.in_order()]
    new = [*choice.kept, *(each for each in followers if each["kind"] not in kinds)]
    first = max((question.number for question in already), default=0) + 1
    with QUESTIONS.open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in numbered(new, first))
    print(f"{len(new):,} questions of {len(choice.offered):,} candidates are new; {QUESTIONS.stat().st_size:,} bytes")


def all_candidates(random: Random, recorded: list[Path]) -> Iterator[Candidate]:
    """Yield every candidate that stores nothing but plans; of recorded ones the order is drawn."""
    yield from training.candidates(random)
    yield from serving.candidates(random)
    yield from reviews.candidates()
    yield from catalogue.candidates()
    lines = sorted({line for file in recorded for line in file.read_text(encoding="utf-8").splitlines()})
    for candidate in map(json.loads, random.sample(lines, len(lines))):
        path = candidate["path"].partition("?")[0]
        if path in ("/plan/train", "/plan/infer", "/admission/validate", "/models/describe"):
            yield candidate


def following(plans: list[tuple[Candidate, dict[str, Any]]], random: Random) -> Iterator[Candidate]:
    """Yield what is asked of plans that were answered: some of them read, and some launch files of every name."""
    for plan, _ in random.sample(plans, min(PLANS_READ, len(plans))):
        yield from stored.of_plan(plan)
        yield from reviews.of_plan(plan)
    files: Counter[str] = Counter()
    for plan, answer in random.sample(plans, len(plans)):
        for name in answer["artifacts"]:
            if files[name] < FILES_OF_A_NAME:
                files[name] += 1
                yield stored.of_artifact(plan, name, in_queue=files[name] == FILES_OF_A_NAME)


def numbered(new: list[Candidate], first: int) -> Iterator[str]:
    """Yield each question as a line; one that comes after another names its number."""
    numbers = {id(candidate): number for number, candidate in enumerate(new, first)}
    for number, candidate in enumerate(new, first):
        after = {"after": numbers[id(candidate["after"])]} if "after" in candidate else {}
        yield json.dumps({"number": number, **candidate, **after}, ensure_ascii=False)


def _content(question: Question) -> str:
    """Return all of a question that its answer depends on."""
    asked = (question.method, question.path, question.content, sorted(question.headers.items()), question.after)
    return json.dumps(asked)


def _processor_seconds() -> float:
    """Return what the service's processes took of a processor so far."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:2])
    return total


def _room(kind: str) -> tuple[int, int]:
    return next(room for beginning, room in ROOM.items() if kind.startswith(beginning))


if __name__ == "__main__":
    main()
