"""No test picks a statement or a moment of a step by its place in a list: one more before it would break what has
nothing to do with it.

`[only] = answer.warnings` says that there is one; of several a test picks by name, pointer, rule or words.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
# What answers say beside their numbers; ranked lists, whose first is the best, are not among them.
STATEMENTS = frozenset(
    (
        "advice", "assumptions", "comparisons", "differences", "disagreements", "errors", "missing", "notes", "reasons",
        "spikes", "warnings",
    )
)  # fmt: skip
# What a step is made of: a stack that does one thing more has one more of them.
PARTS_OF_A_STEP = frozenset(("events", "moments"))


def picked_by_place(source: str) -> Iterator[int]:
    """Yield the lines on which a list of statements, or of what a step is made of, is indexed by a number."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Subscript) and _is_number(node.slice) and _is_listed(node.value):
            yield node.lineno


def _is_listed(value: ast.expr) -> bool:
    """Return whether these are statements or parts of a step; a plain name says it of the latter and of notes alone."""
    if isinstance(value, ast.Name):
        return value.id in PARTS_OF_A_STEP | {"notes", "warnings"}
    return _name(value) in STATEMENTS | PARTS_OF_A_STEP


def _is_number(index: ast.expr) -> bool:
    match index:
        case ast.Constant(value=int()) | ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int())):
            return True
        case _:
            return False


def _name(listed: ast.expr) -> str:
    """Return what a list is called: `answer.errors`, `body["errors"]`, and `missing["vllm"]`, a list for each name."""
    match listed:
        case ast.Attribute(attr=name) | ast.Subscript(value=ast.Attribute(attr=name)):
            return name
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
        case _:
            return ""


def test_no_test_picks_a_statement_by_its_place():
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("test_*.py"))
        for line in picked_by_place(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_places_are_found_in_records_and_in_json():
    source = 'answer.warnings[0]\nbody["errors"][-1]["pointer"]\nmade.missing["vllm"][0]\nplan.stages[0]\nstages[1:]'
    assert sorted(picked_by_place(source)) == [1, 2, 3]


def test_places_are_found_among_events_and_moments():
    source = 'ledger.events[3]\nfound["moments"][-1]["items"]\nmoments[-2].items\nphases[0]\nevents[1:]'
    assert sorted(picked_by_place(source)) == [1, 2, 3]
