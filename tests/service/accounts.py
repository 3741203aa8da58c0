"""What root may do here about accounts: containers take rights from it."""

from __future__ import annotations

import functools
import os
import subprocess

import pytest

from plimsoll.service.running.processes import launched

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another")


@functools.cache
def why_not_in_disguise() -> str | None:
    """Return why no user namespace may be made here, None where one may."""
    tried = subprocess.run(launched(["/bin/true"], identity=(65534, 65534), in_namespace=True), capture_output=True)
    return None if tried.returncode == 0 else f"no user namespace may be made here: {tried.stderr.decode().strip()}"


in_disguise = pytest.mark.skipif(
    "os.geteuid() == 0 and why_not_in_disguise() is not None", reason="no user namespace may be made here"
)
"""For what root does in one; whoever uses it imports `os` and the function, which is asked as the test begins."""
