"""The documentation builds, and every link of it leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from plimsoll.service.worker.processes.child import PROJECT_ROOT

_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def test_the_site_is_built_without_a_warning(tmp_path: Path):
    # Not with --quiet: a warning that is not told is not counted either.
    command = [sys.executable, "-m", "properdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    ended = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "site" / "runbooks" / "will-it-fit.html").is_file()


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md"])
def test_links_of_pages_outside_the_site_lead_to_files(name: str):
    targets = [target for target in _LINK.findall((PROJECT_ROOT / name).read_text()) if "://" not in target]
    assert [target for target in targets if not (PROJECT_ROOT / target).exists()] == []
