from __future__ import annotations

from cli.credentials import key_header


def test_the_key_of_the_environment_is_shown_and_an_empty_one_is_none(monkeypatch):
    monkeypatch.setenv("PLIMSOLL_API_KEY", "plimsoll_k")
    assert key_header() == {"authorization": "Bearer plimsoll_k"}
    monkeypatch.setenv("PLIMSOLL_API_KEY", "")
    assert key_header() == {}
