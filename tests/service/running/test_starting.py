from __future__ import annotations

import os
import subprocess
import sys

import pytest

from plimsoll.service.ground.errors import DatabaseUnavailable
from plimsoll.service.ground.settings import Settings
from plimsoll.service.running.starting import CANNOT_START, CannotStart, told_in_a_line
from plimsoll.service.worker.processes.child import PROJECT_ROOT

CLI = ["-m", "plimsoll.cli.main"]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (CannotStart("PLIMSOLL_X is not set."), "PLIMSOLL_X is not set."),
        (DatabaseUnavailable("It is away:\n\tis it running?"), "It is away: is it running?"),
        (OSError(98, "Address already in use"), "[Errno 98] Address already in use"),
    ],
)
def test_a_reason_is_one_line(error: Exception, line: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended, told_in_a_line():
        raise error
    assert ended.value.code == CANNOT_START
    assert capsys.readouterr().err == f"Plimsoll cannot start: {line}\n"


def test_settings_are_named_as_they_are_set(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit), told_in_a_line():
        Settings(port=65_536, tls_key_file="key.pem")
    assert capsys.readouterr().err == (
        "Plimsoll cannot start: PLIMSOLL_PORT: Input should be less than or equal to 65535.\n"
    )
    with pytest.raises(SystemExit), told_in_a_line():
        Settings(tls_key_file="key.pem")
    assert "PLIMSOLL_TLS_CERTIFICATE_FILE and PLIMSOLL_TLS_KEY_FILE are set together" in capsys.readouterr().err


def test_a_mistake_of_ours_keeps_its_traceback():
    with pytest.raises(KeyError), told_in_a_line():
        raise KeyError("ours")


@pytest.mark.parametrize(
    ("command", "changes", "told"),
    [
        (["-m", "plimsoll.api"], {}, "PLIMSOLL_DATABASE_URL is not set."),
        (["-m", "plimsoll.api"], {"PLIMSOLL_PORT": "many"}, "PLIMSOLL_PORT: Input should be a valid integer"),
        (
            ["-m", "plimsoll.cli.main", "serve"],
            {"PLIMSOLL_DATABASE_URL": "mysql://x"},
            "PLIMSOLL_DATABASE_URL: 'mysql' is not",
        ),
        (
            ["-m", "plimsoll.cli.main", "serve"],
            {"PLIMSOLL_DATA_DIR": "/dev/null"},
            "cannot be kept in /dev/null/postgres",
        ),
    ],
)
def test_a_process_that_cannot_start_says_why_in_a_line(command: list[str], changes: dict[str, str], told: str):
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("PLIMSOLL_")}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=PROJECT_ROOT,
        env={**surroundings, **changes},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == CANNOT_START
    (line,) = done.stderr.splitlines()
    assert line.startswith("Plimsoll cannot start: ")
    assert told in line
