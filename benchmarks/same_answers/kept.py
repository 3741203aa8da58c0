"""Answers of a commit, kept so that only the working tree is asked again."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from benchmarks.same_answers.asking import Answer
from benchmarks.same_answers.questions import QUESTIONS

FOLDER = Path(".same-answers")
DIGEST_CHARACTERS = 12


def kept_file(commit: str) -> Path:
    """Return where the answers of a commit to the questions of today are kept."""
    digest = hashlib.sha256(QUESTIONS.read_bytes()).hexdigest()[:DIGEST_CHARACTERS]
    return FOLDER / f"{commit}-{digest}.json.gz"


def read_kept(file: Path) -> dict[int, Answer] | None:
    """Return the answers of a file by their questions' numbers, None where there is no such file."""
    if not file.exists():
        return None
    answers = json.loads(gzip.decompress(file.read_bytes()))
    return {int(number): Answer(**answer) for number, answer in answers.items()}


def keep(file: Path, answers: Mapping[int, Answer]) -> None:
    """Write answers to a file, all of them or none."""
    file.parent.mkdir(exist_ok=True)
    unfinished = file.with_suffix(".new")
    text = json.dumps({number: asdict(answer) for number, answer in answers.items()})
    unfinished.write_bytes(gzip.compress(text.encode(), compresslevel=1))
    unfinished.replace(file)
