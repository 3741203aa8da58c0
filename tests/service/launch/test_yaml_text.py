"""YAML in block style: read back as it was given."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.service.launch.yaml_text import yaml_text

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))


@given(st.dictionaries(TEXT, VALUES.filter(lambda value: not _nests_lists(value)), max_size=4))
def test_whatever_is_written_is_read_back(value: dict[str, Any]):
    assert yaml.safe_load(yaml_text(value) or "{}") == value


def _nests_lists(value: Any) -> bool:
    if isinstance(value, list):
        return any(isinstance(item, list) or _nests_lists(item) for item in value)
    return isinstance(value, dict) and any(_nests_lists(item) for item in value.values())


@pytest.mark.parametrize(
    "word",
    ["yes", "No", "null", "~", "1e3", ".5", "...", "12:30:45", "2026-01-01", "a: b", "a:", "- a", "---", "#", "", "*"],
)
def test_words_that_yaml_would_take_for_something_else_are_quoted(word: str):
    assert yaml.safe_load(yaml_text({"word": word})) == {"word": word}


@pytest.mark.parametrize(
    "word", ["vllm/vllm-openai:v0.33.0", "--nnodes=2", "$IMAGE", "--node-rank=$(RANK)", "/etc/plimsoll"]
)
def test_words_of_commands_stand_without_quotes(word: str):
    assert yaml_text({"word": word}) == f"word: {word}"
    assert yaml.safe_load(yaml_text({"word": word})) == {"word": word}


def test_a_file_stands_in_lines():
    assert yaml_text({"data": {"options.yaml": "a:\n  b: 1\n"}}) == "data:\n  options.yaml: |\n    a:\n      b: 1\n"


@pytest.mark.parametrize(
    "text", ["a\nb", "a\n\nb\n", " a\nb\n", "a\n\n", "\n", "a\n\x07\n", "a\u2028b\n", "a \n\tb\n", "😀\n"]
)
def test_lines_are_read_back_whatever_they_hold(text: str):
    assert yaml.safe_load(yaml_text({"a": {"b": text}})) == {"a": {"b": text}}


def test_documents_are_told_apart():
    assert list(yaml.safe_load_all(yaml_text({"a": 1}, {"b": [2]}))) == [{"a": 1}, {"b": [2]}]


def test_blocks_are_indented_by_two():
    text = yaml_text({"a": {"b": [1, {"c": 2, "d": [3]}], "e": {}}, "f": 1e-08})
    assert text == "a:\n  b:\n  - 1\n  - c: 2\n    d:\n    - 3\n  e: {}\nf: 1.0e-08"
