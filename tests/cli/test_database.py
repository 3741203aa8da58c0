"""`plimsoll db upgrade`: which database it finds, and what it says where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from plimsoll.cli.main import app


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("", "name a server in PLIMSOLL_DATABASE_URL"),
        ("postgresql://a:b@127.0.0.1:1/x", "The database does not answer"),
    ],
)
def test_without_a_database_the_way_out_is_told_in_place_of_a_trace(
    url: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PLIMSOLL_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("PLIMSOLL_DATABASE_URL", raising=False)
    if url:
        monkeypatch.setenv("PLIMSOLL_DATABASE_URL", url)
    answer = CliRunner().invoke(app, ["db", "upgrade"])
    assert answer.exit_code == 2
    assert told in answer.stderr
    assert "Traceback" not in answer.output


def test_the_configured_database_is_upgraded(module_database_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PLIMSOLL_DATABASE_URL", module_database_url)
    answer = CliRunner().invoke(app, ["db", "upgrade"])
    assert (answer.exit_code, answer.stdout) == (0, "The schema is up to date.\n")
