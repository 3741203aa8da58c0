from __future__ import annotations

import pytest

from benchmarks.accuracy.document import Section, write_sections

PAGE = """# How accurate

Text before.
<!-- table: measured-on -->
<!-- end -->
<!-- table: memory -->
```
old
```
<!-- end -->
Text after.
"""


def section(name: str = "memory") -> Section:
    return Section(name=name, title="Peak memory", lines=("stack  mean", r"a\1     2 %"))


def test_a_table_takes_its_place_and_the_text_around_it_stays(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    write_sections(page, [section()])
    text = page.read_text()
    assert "```\nPeak memory\n\nstack  mean\na\\1     2 %\n```\n<!-- end -->\nText after.\n" in text
    assert "old" not in text
    assert text.startswith("# How accurate\n\nText before.\n<!-- table: measured-on -->\n```\n20")


def test_writing_again_changes_nothing_more(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    write_sections(page, [section()])
    once = page.read_text()
    write_sections(page, [section()])
    assert page.read_text() == once


def test_a_table_without_a_place_is_an_error_and_nothing_is_written(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    with pytest.raises(ValueError, match="no place for 'time'"):
        write_sections(page, [section(), section("time")])
    assert page.read_text() == PAGE
