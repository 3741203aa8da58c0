"""TOML tables: read back as they were given."""

from __future__ import annotations

import tomllib

from plimsoll.service.launch.toml_text import toml_text


def test_tables_are_read_back():
    tables = {"a": {"b": 1, "c": 1e-08, "d": True, "e": [["x.y", 'quo"te'], []]}, "a.b": {"c": "ä\n"}}
    found = tomllib.loads(toml_text({"a": tables["a"], "f.g": tables["a.b"]}))
    assert found == {"a": tables["a"], "f": {"g": {"c": "ä\n"}}}


def test_empty_tables_are_left_away():
    assert toml_text({"a": {}, "b": {"c": 1}}) == "[b]\nc = 1"
