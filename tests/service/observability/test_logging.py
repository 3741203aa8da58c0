from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from plimsoll.service.worker.processes.child import PROJECT_ROOT
from tests.service.hub_server import running_hub

PROGRAM = """
import logging, structlog
from plimsoll.service.observability.logging import configure_logging
configure_logging("warning")
structlog.get_logger("ours").info("unseen")
structlog.get_logger("ours").warning("ours", job_id="j1")
try:
    secret = "plimsoll_0123_very-secret"
    1 / 0
except ZeroDivisionError:
    logging.getLogger("theirs").exception("theirs %s", "too")
"""


FETCHING = """
import sys
from pathlib import Path
from plimsoll.service.ground.errors import HubModelNotFound
from plimsoll.service.models.hub.configs import HubClient
from plimsoll.service.observability.logging import configure_logging
from plimsoll.service.ground.settings import Settings
configure_logging("debug")
try:
    HubClient(Settings(hub_url=sys.argv[1], data_dir=Path(sys.argv[2]))).config("org/name", "main")
except HubModelNotFound:
    print("asked")
"""


def test_the_password_of_an_address_that_is_asked_is_not_logged(tmp_path: Path):
    with running_hub() as hub:
        address = hub.url.replace("//", "//someone:very-secret@")
        said = subprocess.run(
            [sys.executable, "-c", FETCHING, address, str(tmp_path)],
            cwd=PROJECT_ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
    assert said.stdout == "asked\n"
    # It is shown to the hub, as everywhere with an address of this form: "someone:very-secret".
    assert hub.tokens == ["Basic c29tZW9uZTp2ZXJ5LXNlY3JldA=="]
    assert "very-secret" not in said.stderr


def test_every_record_is_one_json_object_a_line_from_the_level_up():
    shown = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=PROJECT_ROOT, capture_output=True, text=True, check=True
    )
    ours, theirs = [json.loads(line) for line in shown.stderr.splitlines()]
    assert (ours["event"], ours["level"], ours["logger"], ours["job_id"]) == ("ours", "warning", "ours", "j1")
    assert (theirs["event"], theirs["exception"][0]["exc_type"]) == ("theirs too", "ZeroDivisionError")
    assert ours["timestamp"].endswith("Z")


def test_what_a_frame_holds_is_not_logged():
    shown = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=PROJECT_ROOT, capture_output=True, text=True, check=True
    )
    assert "ZeroDivisionError" in shown.stderr
    assert "very-secret" not in shown.stderr
