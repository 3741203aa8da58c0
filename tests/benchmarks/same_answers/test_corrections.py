from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.same_answers.comparing import Difference
from benchmarks.same_answers.corrections import Correction, read_corrections

SECONDS = Difference(pointer="/plan/step/seconds", before="1", after="2")


@pytest.mark.parametrize(
    ("named", "number", "is_covered"),
    [
        ({"questions": (17,)}, 17, True),
        ({"questions": (17,)}, 18, False),
        ({"pointers": ("/plan/step",)}, 18, True),
        ({"pointers": ("/plan/ste",)}, 18, False),
        ({"questions": (17,), "pointers": ("/plan/memory",)}, 17, False),
        ({"questions": (17,), "pointers": ("/plan/step/seconds",)}, 17, True),
    ],
)
def test_a_correction_covers_what_it_names(named: dict[str, tuple[int, ...]], number: int, is_covered: bool):
    correction = Correction(reason="Counted twice.", **named)
    assert correction.covers(number, SECONDS) is is_covered


def test_a_line_of_a_text_lies_under_its_pointer():
    line = Difference(pointer="/artifacts/slurm (line 3)", before="a", after="b")
    assert Correction(reason="Another name.", pointers=("/artifacts/slurm",)).covers(1, line)


@pytest.mark.parametrize("text", ['questions = [1]\nreason = " "', 'reason = "Everything."'])
def test_a_correction_without_a_reason_or_of_everything_is_refused(tmp_path: Path, text: str):
    file = tmp_path / "corrections.toml"
    file.write_text(f"[[correction]]\n{text}")
    with pytest.raises(ValueError, match="names its reason"):
        read_corrections(file)


def test_the_corrections_of_this_tree_are_read():
    assert all(each.reason for each in read_corrections())
