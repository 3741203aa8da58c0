from __future__ import annotations

from pathlib import Path

import pytest

from plimsoll.cli.artifact_files import list_artifacts, safe_file_name, write_artifacts
from plimsoll.cli.asking import NoAnswer

ARTIFACTS = {"torchrun": "torchrun train.py", "deepspeed": {"zero": 3}, "job.yaml": "kind: Job\n"}


def test_each_launch_file_is_written_under_a_name_with_an_ending(tmp_path: Path):
    write_artifacts(ARTIFACTS, tmp_path / "new" / "launch")
    written = {path.name: path.read_text() for path in (tmp_path / "new" / "launch").iterdir()}
    assert written == {
        "torchrun.sh": "torchrun train.py\n",
        "deepspeed.json": '{\n  "zero": 3\n}\n',
        "job.yaml": "kind: Job\n",
    }


def test_nothing_is_written_over_and_then_nothing_at_all(tmp_path: Path):
    (tmp_path / "job.yaml").write_text("mine")
    with pytest.raises(NoAnswer, match=r"job\.yaml"):
        write_artifacts(ARTIFACTS, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../b", "a\\b", "", "a\n"])
def test_a_name_that_leads_elsewhere_is_refused(name: str):
    with pytest.raises(NoAnswer):
        safe_file_name(name, "")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NoAnswer, match="cannot be written"):
        write_artifacts(ARTIFACTS, tmp_path / "file" / "launch")


def test_a_plan_without_launch_files_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(NoAnswer, match="no launch files"):
        write_artifacts({}, tmp_path)
    list_artifacts({}, as_json=False)
    assert capsys.readouterr().out == "The plan has no launch files.\n"


def test_files_are_listed_with_their_names(capsys: pytest.CaptureFixture[str]):
    list_artifacts(ARTIFACTS, as_json=False)
    # "torchrun train.py" and its line's end are 18 characters.
    assert "torchrun      torchrun.sh  18 characters" in capsys.readouterr().out


def test_a_script_can_be_run_as_it_is_written(tmp_path: Path):
    write_artifacts({"horovod-hosts": "#!/bin/sh\necho here:8", "torchrun": "torchrun train.py"}, tmp_path)
    assert (tmp_path / "horovod-hosts").stat().st_mode & 0o111 == 0o111
    assert (tmp_path / "torchrun.sh").stat().st_mode & 0o111 == 0
