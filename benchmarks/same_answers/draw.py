"""Draw the stored questions anew: ask the service of this tree many candidates, and keep some of every kind.

    python -m benchmarks.same_answers.draw recorded.jsonl

Numbers change, and with them what corrections name, so this is done seldom. `recorded.jsonl` is what `recorded` wrote.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx

from benchmarks.same_answers.asking import a_client, ask
from benchmarks.same_answers.candidates import catalogue, reviews, serving, stored, training
from benchmarks.same_answers.candidates.parts import Candidate
from benchmarks.same_answers.questions import QUESTIONS, Question
from benchmarks.same_answers.running import running_service

SEED = 20_261_123
SLOWEST_SECONDS = 1.0
MOST_CHARACTERS = 6_000
BAD_REQUEST = 400
# How many of a kind are kept, of those that are answered and of those that are refused, by how the kind begins.
ROOM = {
    "train, mixed": (60, 15), "train a layout of ": (6, 1), "train a config of ": (1, 0), "train with ": (2, 0),
    "train full by ": (2, 1), "train ": (1, 0), "serve, mixed": (50, 15), "serve a layout of ": (6, 1),
    "serve a config of ": (1, 0), "serve with ": (2, 0), "serve ": (1, 1), "asked by ": (8, 3), "": (1, 1),
}  # fmt: skip
PLANS_READ = 12
FILES_OF_A_NAME = 3


@dataclass(slots=True)
class Choice:
    """The candidates that are kept, and the plans among their answers."""

    client: httpx.Client
    kept: list[Candidate] = field(default_factory=list)
    plans: list[tuple[Candidate, dict[str, Any]]] = field(default_factory=list)
    offered: set[str] = field(default_factory=set)
    counts: Counter[tuple[str, bool]] = field(default_factory=Counter)

    def offer(self, candidate: Candidate) -> None:
        """Keep a candidate whose kind lacks such an answer, where it is a new one and its answer comes quickly."""
        kind, content = candidate["kind"], json.dumps({**candidate, "kind": ""}, sort_keys=True)
        lacks_answer, lacks_refusal = (
            room > self.counts[kind, is_answered] for room, is_answered in zip(_room(kind), (True, False), strict=True)
        )
        is_new = content not in self.offered and len(content) <= MOST_CHARACTERS
        if not (is_new and (lacks_answer or lacks_refusal)):
            return
        self.offered.add(content)
        began_at = time.monotonic()
        answer = ask(self.client, Question(number=1, **candidate), {})
        is_answered = answer.status < BAD_REQUEST
        is_quick = time.monotonic() - began_at < SLOWEST_SECONDS
        if is_quick and (lacks_answer if is_answered else lacks_refusal):
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
    with (
        tempfile.TemporaryDirectory() as folder,
        running_service(Path.cwd(), Path(folder) / "data") as url,
        a_client(url) as client,
    ):
        choice = Choice(client)
        for candidate in all_candidates(random, given.recorded):
            choice.offer(candidate)
    kept = [*choice.kept, *following(choice.plans, random), *stored.in_order()]
    QUESTIONS.write_text("".join(f"{line}\n" for line in numbered(kept)), encoding="utf-8")
    print(f"{len(kept):,} questions of {len(choice.offered):,} candidates, {QUESTIONS.stat().st_size:,} bytes")


def all_candidates(random: Random, recorded: list[Path]) -> Iterator[Candidate]:
    """Yield every candidate that stores nothing but plans; of recorded ones the order is drawn."""
    yield from training.candidates(random)
    yield from serving.candidates(random)
    yield from reviews.candidates()
    yield from catalogue.candidates()
    lines = sorted({line for file in recorded for line in file.read_text(encoding="utf-8").splitlines()})
    for candidate in map(json.loads, random.sample(lines, len(lines))):
        if candidate["path"].partition("?")[0] in (
            "/plan/train",
            "/plan/infer",
            "/admission/validate",
            "/models/describe",
        ):
            yield candidate


def following(plans: list[tuple[Candidate, dict[str, Any]]], random: Random) -> Iterator[Candidate]:
    """Yield what is asked of plans that were answered: some of them read, and some launch files of every name."""
    for plan, _ in random.sample(plans, PLANS_READ):
        yield from stored.of_plan(plan)
        yield from reviews.of_plan(plan)
    files: Counter[str] = Counter()
    for plan, answer in random.sample(plans, len(plans)):
        for name in answer["artifacts"]:
            if files[name] < FILES_OF_A_NAME:
                files[name] += 1
                yield stored.of_artifact(plan, name, in_queue=files[name] == FILES_OF_A_NAME)


def numbered(kept: list[Candidate]) -> Iterator[str]:
    """Yield each question as a line; one that comes after another names its number."""
    numbers = {id(candidate): number for number, candidate in enumerate(kept, 1)}
    for number, candidate in enumerate(kept, 1):
        after = {"after": numbers[id(candidate["after"])]} if "after" in candidate else {}
        yield json.dumps({"number": number, **candidate, **after}, ensure_ascii=False)


def _room(kind: str) -> tuple[int, int]:
    return next(room for beginning, room in ROOM.items() if kind.startswith(beginning))


if __name__ == "__main__":
    main()
