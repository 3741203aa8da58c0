"""Tests of the comparison with floods of requests."""

from __future__ import annotations

import csv

from benchmarks.accuracy.serving.floods import FLOODS, KINDS, Flood, flood_lines, floods


def flood(model, throughput, **changed):
    given = {
        "kind": "prompt_flood",
        "engine": "vllm",
        "gpu": "card",
        "closed_form": 1.0,
        "first_token": 1.0,
        "token": 1.0,
        **changed,
    }
    return Flood(model=model, throughput=throughput, **given)


def test_every_flood_is_planned_or_counted_as_without_room():
    with FLOODS.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] in KINDS]
    planned, left_out = floods()
    assert len(planned) + left_out == len(rows)
    assert left_out < 10


def test_rows_within_a_quarter_are_counted():
    # 0.8 and 1.25 are, 1.3 is not.
    lines = flood_lines([flood("a", 0.8), flood("a", 1.25), flood("a", 1.3)], 0)
    line = next(line for line in lines if line.startswith("prompts   card           vllm"))
    assert "2/ 3" in line


def test_a_cards_factor_leaves_its_own_model_out():
    # The others' geometric mean is (1 x 4)^0.5 = 2, of which the own 3 is 1.5 times.
    lines = list(flood_lines([flood("a", 3.0), flood("b", 1.0), flood("c", 4.0)], 0))
    after = lines[lines.index(next(line for line in lines if line.startswith("prompts, planned"))) + 1]
    assert after.split()[-3:] == ["a", "2.00", "1.50"]
