"""`plimsoll keys`, from making a key to refusing it."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from plimsoll.cli.main import app

runner = CliRunner()


@pytest.fixture(autouse=True)
def _configured(monkeypatch, database_url):
    monkeypatch.setenv("PLIMSOLL_DATABASE_URL", database_url)


def test_a_key_is_made_listed_and_revoked():
    made = runner.invoke(app, ["keys", "create", "ci", "--scope", "plan", "--scope", "validate", "--days", "30"])
    assert made.exit_code == 0, made.output
    key = made.stdout.strip()
    assert re.fullmatch(r"plimsoll_[0-9a-f]{16}_[A-Za-z0-9_-]{43}", key)
    assert "for plan, validate, which expires on" in made.stderr
    key_id = key.split("_")[1]
    listed = runner.invoke(app, ["keys", "list"]).stdout
    assert key_id in listed
    assert "plan,validate" in listed
    assert key not in listed
    assert "is revoked" in runner.invoke(app, ["keys", "revoke", key_id]).stdout
    assert "revoked on" in runner.invoke(app, ["keys", "list"]).stdout


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["create", "ci"], 2),
        (["create", "ci", "--scope", "everything"], 2),
        (["create", "ci", "--scope", "plan", "--days", "0"], 2),
        (["revoke", "nobody"], 1),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, status):
    assert runner.invoke(app, ["keys", *arguments]).exit_code == status


def test_without_a_database_it_says_how_to_start_one(monkeypatch, tmp_path):
    monkeypatch.delenv("PLIMSOLL_DATABASE_URL")
    monkeypatch.setenv("PLIMSOLL_DATA_DIR", str(tmp_path))
    refused = runner.invoke(app, ["keys", "list"])
    assert refused.exit_code == 1
    assert "plimsoll serve" in refused.stderr


def test_the_database_of_a_running_service_is_found(monkeypatch, postgres):
    # It holds no tables of ours, which only a database that was found can say.
    monkeypatch.delenv("PLIMSOLL_DATABASE_URL")
    monkeypatch.setenv("PLIMSOLL_DATA_DIR", str(postgres._root.parent))
    assert "plimsoll db upgrade" in runner.invoke(app, ["keys", "list"]).stderr
