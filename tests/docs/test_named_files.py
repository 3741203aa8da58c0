"""A file of this repository that a page names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
# A path in code marks that begins with one of our folders; <name> stands for any.
NAMED = re.compile(r"`((?:api|benchmarks|cli|deploy|docs|migrations|planners|plimsoll|service|tests)/[\w./*<>-]*)`")


def missing(page: Path) -> list[str]:
    named = [re.sub("<[^>]*>", "*", name) for name in NAMED.findall(page.read_text(encoding="utf-8"))]
    return [name for name in named if not any(ROOT.glob(name.rstrip("/")))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page: Path):
    assert missing(page) == []


def test_a_file_that_is_not_there_is_found(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("`planners/ghost.py`, `planners/stacks/<name>/stack.toml` and `service/`")
    assert missing(page) == ["planners/ghost.py"]
