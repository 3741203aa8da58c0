from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from plimsoll.service.running import processes
from plimsoll.service.running.processes import CANNOT_LAUNCH, launched
from tests.service.accounts import as_root, in_disguise, why_not_in_disguise  # noqa: F401 - the mark asks it

WHO_AM_I = ["/bin/sh", "-c", "id -u; id -g; id -G"]


def output_of(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_launched_command_keeps_its_process_id_and_its_exit_status():
    child = subprocess.Popen(launched(["/bin/sh", "-c", "echo $$; exit 7"]), stdout=subprocess.PIPE, text=True)
    said, _ = child.communicate()
    assert (int(said), child.returncode) == (child.pid, 7)


def test_a_launched_command_is_signalled_when_its_parent_dies(tmp_path):
    pipe = tmp_path / "alive"
    os.mkfifo(pipe)
    grandchild = launched(["/bin/sh", "-c", "echo up; exec sleep 600"])
    parent_option = grandchild.index("--parent") + 1
    program = (
        "import os, subprocess, sys\n"
        f"command = {grandchild!r}\n"
        f"command[{parent_option}] = str(os.getpid())\n"
        f"subprocess.Popen(command, stdout=open({str(pipe)!r}, 'w'))\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    with pipe.open() as alive:
        assert alive.readline() == "up\n"
        parent.kill()
        # The end comes once the last who may write is gone: the grandchild too.
        assert alive.read() == ""
    parent.communicate()


def test_a_child_whose_parent_is_gone_does_not_start():
    command = launched(["/bin/echo", "started"])
    # Process 0 is nobody's parent here: as if the real one had died before the child looked.
    command[command.index("--parent") + 1] = "0"
    child = subprocess.run(command, capture_output=True)
    assert (child.returncode, child.stdout) == (1, b"")


def test_a_command_that_is_not_there_is_named():
    child = subprocess.run(launched(["/nowhere/program"]), capture_output=True, text=True)
    assert child.returncode == CANNOT_LAUNCH
    assert "/nowhere/program could not be started: [Errno 2]" in child.stderr


def test_a_launched_command_has_the_signals_of_a_fresh_process():
    # Bits of the mask count from signal 1. Python itself ignores SIGPIPE (13) and SIGXFSZ (25).
    ignored = output_of(launched(["/bin/grep", "SigIgn", "/proc/self/status"])).split()[1]
    assert int(ignored, 16) & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)) == 0


@as_root
def test_root_becomes_another_with_no_groups_left():
    assert output_of(launched(WHO_AM_I, identity=(12345, 12346))).split() == ["12345", "12346", "12346"]


@as_root
@in_disguise
def test_root_is_called_another_in_a_namespace_of_its_own():
    assert output_of(launched(WHO_AM_I, identity=(65534, 65534), in_namespace=True)).split()[:2] == ["65534", "65534"]


@in_disguise
def test_an_identity_that_may_not_be_taken_is_told():
    command = launched(["/bin/true"], identity=(12345, 12346))
    if os.geteuid() == 0:
        # Without root's rights, and still the child of this process: becoming another keeps the process's number.
        command = launched(command, identity=(65534, 65534), in_namespace=True)
    child = subprocess.run(command, capture_output=True, text=True)
    assert child.returncode == CANNOT_LAUNCH
    assert "/bin/true could not be started: [Errno 1] Operation not permitted" in child.stderr


def test_the_launcher_imports_the_standard_library_alone():
    lines = Path(processes.__file__).read_text(encoding="utf-8").splitlines()
    modules = {line.split()[1].split(".")[0] for line in lines if line.startswith(("import ", "from "))}
    assert modules <= set(sys.stdlib_module_names)
