"""Files that anyone may have written are bounded, and refused rather than guessed at."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plimsoll.service.ground import untrusted_files
from plimsoll.service.ground.untrusted_files import UnusableFile, opened, parsed_object, shown, whole_content


def test_a_file_is_read_up_to_its_limit_and_not_beyond(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert whole_content(path, most_bytes=5) == b"12345"
    with pytest.raises(UnusableFile, match="larger than 4 bytes"):
        whole_content(path, most_bytes=4)


def test_a_link_a_pipe_a_folder_and_nothing_are_refused_at_once(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("link", "pipe", "folder", "nothing", "nul\0"):
        with pytest.raises(UnusableFile), opened(tmp_path / name):
            pass


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[" * 100_000 + b"]" * 100_000, "nested too deep"),
        (b'{"a": ' * 100_000 + b"1" + b"}" * 100_000, "nested too deep"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "names 'c' twice"),
        (b'{"a": NaN}', "not JSON"),
        (b'{"a": 1', "not JSON"),
        (b'{"a": "\xff"}', "not JSON"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "not JSON"),
        ('{"a": 1}'.encode("utf-16"), "not JSON"),
        (b"[1]", "no JSON object"),
        (b"", "not JSON"),
    ],
)
def test_json_that_is_none_or_hostile_is_refused(content: bytes, reason: str):
    with pytest.raises(UnusableFile, match=reason):
        parsed_object(content, name="x.json")


def test_as_many_entries_as_are_allowed_and_no_more():
    most = untrusted_files.MOST_JSON_ENTRIES
    with pytest.raises(UnusableFile, match="entries"):
        parsed_object(b"[" * (most + 1), name="x.json")
    with pytest.raises(UnusableFile, match="nested too deep"):
        parsed_object(b"[" * most, name="x.json")


def test_a_name_is_shown_cut_and_without_control_characters():
    assert shown("a\x1b[31m") == r"'a\x1b[31m'"
    assert len(shown("x" * 1000)) < 100
