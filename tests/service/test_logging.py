from __future__ import annotations

import json
import subprocess
import sys

from service.worker.child import PROJECT_ROOT

PROGRAM = """
import logging, structlog
from service.logging import configure_logging
configure_logging("warning")
structlog.get_logger("ours").info("unseen")
structlog.get_logger("ours").warning("ours", job_id="j1")
try:
    secret = "plimsoll_0123_very-secret"
    1 / 0
except ZeroDivisionError:
    logging.getLogger("theirs").exception("theirs %s", "too")
"""


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
