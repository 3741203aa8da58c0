from __future__ import annotations

import os
import pwd
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from plimsoll.service.ground.errors import DatabaseUnavailable
from plimsoll.service.running.postgres.account import Account, choose_account, hand_over
from plimsoll.service.running.postgres.binaries import find_postgres
from plimsoll.service.running.postgres.embedded import EmbeddedPostgres
from tests.service.accounts import as_root, in_disguise, why_not_in_disguise  # noqa: F401 - the mark asks it

as_another = pytest.mark.skipif(os.geteuid() == 0, reason="root does not run it as himself")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Return a folder that everyone may enter."""
    with tempfile.TemporaryDirectory(prefix="plimsoll-tests-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def closed_folder(open_folder: Path) -> Path:
    """Return a folder that nobody but its owner may enter."""
    folder = open_folder / "closed"
    folder.mkdir(mode=0o700)
    return folder


def nobody() -> int:
    return pwd.getpwnam("nobody").pw_uid


def user_of(process_id: int) -> int:
    return Path(f"/proc/{process_id}").stat().st_uid


@as_another
def test_an_ordinary_user_runs_it_as_himself(tmp_path):
    account = choose_account(tmp_path / "postgres" / "data", find_postgres())
    assert (account.user_id, account.in_namespace) == (os.geteuid(), False)


@as_root
def test_root_runs_it_as_nobody_in_a_folder_that_nobody_may_enter(open_folder):
    with EmbeddedPostgres(open_folder / "postgres", durable=False) as server:
        assert server.process_id is not None
        assert user_of(server.process_id) == nobody()


@as_root
@in_disguise
def test_root_runs_it_in_disguise_in_a_folder_that_only_root_may_enter(closed_folder):
    with EmbeddedPostgres(closed_folder / "postgres", durable=False) as server:
        assert server.process_id is not None
        assert user_of(server.process_id) == 0


@as_root
@in_disguise
def test_no_parent_is_opened_to_others(closed_folder):
    with EmbeddedPostgres(closed_folder / "postgres", durable=False):
        pass
    assert closed_folder.stat().st_mode & 0o777 == 0o700
    assert closed_folder.stat().st_uid == 0


@as_root
def test_root_runs_it_as_the_owner_of_the_data(open_folder):
    data = open_folder / "postgres" / "data"
    data.mkdir(parents=True)
    os.chown(data, 12345, 12346)
    assert choose_account(data, find_postgres()) == Account(user_id=12345, group_id=12346)


@as_root
@in_disguise
def test_data_changes_hands_when_its_folder_is_closed(open_folder):
    root = open_folder / "inner" / "postgres"
    with EmbeddedPostgres(root, durable=False):
        pass
    assert (root / "data").stat().st_uid == nobody()
    (open_folder / "inner").chmod(0o700)
    with EmbeddedPostgres(root, durable=False) as server:
        assert server.process_id is not None
        assert user_of(server.process_id) == 0
    assert (root / "data" / "PG_VERSION").stat().st_uid == 0


@as_root
def test_root_with_nobody_to_run_it_as_is_told_so(closed_folder, tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    with pytest.raises(DatabaseUnavailable, match="refuses to run as root"):
        choose_account(closed_folder / "postgres" / "data", programs)


@as_root
def test_files_are_handed_over_with_their_folder(open_folder):
    (open_folder / "within").mkdir()
    (open_folder / "within" / "file").touch()
    (open_folder / "link").symlink_to("/etc/hostname")
    before = Path("/etc/hostname").stat().st_uid
    hand_over(open_folder, Account(user_id=12345, group_id=12346))
    assert (open_folder / "within" / "file").stat().st_uid == 12345
    assert Path("/etc/hostname").stat().st_uid == before
