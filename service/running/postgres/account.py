"""Whom PostgreSQL runs as, since it refuses to run as root.

An ordinary user runs it as himself. Under root it runs as the owner of the data, where
there is one, else as `nobody`, where `nobody` can reach the data folder and the
programs, else as root under another name: in a user namespace where root's
id reads as an ordinary one. No folder is ever opened to others for its sake.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plimsoll.service.ground.errors import DatabaseUnavailable
from plimsoll.service.running.processes import launched

# What root is called inside the namespace. Any id but 0 does; this one is in
# every /etc/passwd, and initdb asks for the name of the one that it runs as.
_UNPRIVILEGED = "nobody"

_PROBE_TIMEOUT_SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An identity that a child has before it becomes PostgreSQL."""

    user_id: int
    group_id: int
    in_namespace: bool = False
    """Root outside, somebody else inside."""

    @property
    def file_owner(self) -> tuple[int, int]:
        """Return the user and group that its files belong to, as seen from here."""
        return (0, 0) if self.in_namespace else (self.user_id, self.group_id)

    def running(self, command: Sequence[str]) -> list[str]:
        """Return what runs a command as this account, and shuts PostgreSQL down when this process dies."""
        return launched(
            command,
            signal_number=signal.SIGINT,  # PostgreSQL's fast shutdown
            identity=(self.user_id, self.group_id) if os.geteuid() == 0 else None,
            in_namespace=self.in_namespace,
        )


def choose_account(data: Path, programs: Path) -> Account:
    """Return whom to run as, for a data folder that may be there already and whose parent is.

    Raises DatabaseUnavailable where root has nobody to run it as.
    """
    if os.geteuid() != 0:
        return Account(user_id=os.geteuid(), group_id=os.getegid())
    nobody = pwd.getpwnam(_UNPRIVILEGED)
    disguised = Account(user_id=nobody.pw_uid, group_id=nobody.pw_gid, in_namespace=True)
    candidates = [Account(user_id=nobody.pw_uid, group_id=nobody.pw_gid), disguised]
    if data.exists() and (owner := data.stat()).st_uid != 0:
        candidates.insert(0, Account(user_id=owner.st_uid, group_id=owner.st_gid))
    for candidate in candidates:
        if _can_work(candidate, data.parent, programs):
            return candidate
    raise DatabaseUnavailable(
        f"PostgreSQL refuses to run as root; the user {_UNPRIVILEGED!r} cannot reach {data.parent} or {programs}, and "
        "user namespaces are not allowed here. Run the service as an ordinary user, or set PLIMSOLL_DATA_DIR to a "
        "folder whose parents others may enter."
    )


def hand_over(folder: Path, account: Account) -> None:
    """Give a folder and everything in it to an account, where they belong to another."""
    owner = account.file_owner
    if os.geteuid() != 0 or (folder.stat().st_uid, folder.stat().st_gid) == owner:
        return
    for parent, _, names in os.walk(folder):
        for name in names:
            os.chown(Path(parent, name), *owner, follow_symlinks=False)
        os.chown(parent, *owner, follow_symlinks=False)


def _can_work(account: Account, folder: Path, programs: Path) -> bool:
    """Return whether the account can enter the folder's parent and run the programs, by trying."""
    version = 'cd "$1" && exec "$2" --version'
    tried = account.running(["/bin/sh", "-c", version, "sh", str(folder.parent), str(programs / "postgres")])
    try:
        return subprocess.run(tried, capture_output=True, timeout=_PROBE_TIMEOUT_SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        return False
