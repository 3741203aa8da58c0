from __future__ import annotations

import os
from pathlib import Path

import pytest

from plimsoll.service.ground.allowed_paths import allowed_path
from plimsoll.service.ground.errors import PathNotAllowed

TOO_LONG = 256 * "x"  # NAME_MAX is 255 (linux/limits.h)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "out").symlink_to("/etc")
    return tmp_path


@pytest.mark.parametrize("path", ["model", "model/..", "absent", "absent/deeper", 255 * "x", "model\nwith a line"])
def test_a_path_inside_is_taken_whether_or_not_it_is_there(root: Path, path: str):
    assert allowed_path(path, [root], pointer="/model/path").is_relative_to(root)


@pytest.mark.parametrize(
    "path",
    [
        TOO_LONG,
        f"model/{TOO_LONG}/deeper",
        "/".join(["x" * 200] * 30),
        "nul\0inside",
        "half a pair \ud800",
        "loop",
        "loop/deeper",
        "out/passwd",
        "..",
        "/",
        f"/{TOO_LONG}",
    ],
)
def test_every_other_path_is_refused(root: Path, path: str):
    with pytest.raises(PathNotAllowed) as refused:
        allowed_path(path, [root], pointer="/model/path")
    assert refused.value.pointer == "/model/path"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look into every folder")
def test_a_folder_that_may_not_be_looked_into_is_refused(root: Path):
    (root / "model").chmod(0)
    with pytest.raises(PathNotAllowed, match="cannot be opened"):
        allowed_path("model/inside", [root], pointer="/model/path")
