"""Every command of the documentation is run against a service, or says why it is not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from plimsoll.service.worker.processes.child import PROJECT_ROOT
from tests.docs.commands import NOT_RUN, RUN_LANGUAGE, blocks, pages, script

LONGEST_SECONDS = 600
# What needs a worker: these pages queue jobs.
QUEUING = ("plimsoll validate", "/quantize", "/validate", '"validate"', ".quantize(")
# What a page lets a script say where a command before it answers "no", up to a variable.
SAID_ON_REFUSAL = re.compile(r'\|\| echo "([^"$]+)')
NAMES = [str(page.relative_to(PROJECT_ROOT)) for page in pages()]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with this checkout's `plimsoll` and `python3`."""
    folder = tmp_path_factory.mktemp("bin")
    for name, arguments in (("plimsoll", "-m plimsoll.cli.main "), ("python3", "")):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments}"$@"\n')
        program.chmod(0o755)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_commands_are_run_or_say_why_not(name: str):
    silent = [
        block.line
        for block in blocks(PROJECT_ROOT / name)
        if block.holds_commands and block.language != RUN_LANGUAGE and NOT_RUN not in block.before
    ]
    assert silent == []


@pytest.mark.parametrize("name", [name for name in NAMES if script(PROJECT_ROOT / name, "")])
def test_commands_of_a_page_succeed(
    name: str,
    service_url: str,
    module_database_url: str,
    programs: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
):
    commands = script(PROJECT_ROOT / name, service_url)
    if any(word in commands for word in QUEUING):
        request.getfixturevalue("worker")
    ended = subprocess.run(
        ["/bin/bash", "-euo", "pipefail", "-c", commands],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(PROJECT_ROOT),
            "PLIMSOLL_DATABASE_URL": module_database_url,
        },
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}"
    assert [words for words in SAID_ON_REFUSAL.findall(commands) if words not in ended.stdout] == []
