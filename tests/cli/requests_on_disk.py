"""Requests and models as files, small enough to be answered at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.api.questions import TINY_CONFIG, train


def model_file(folder: Path) -> str:
    """Write a small model's `config.json` and return its path."""
    file = folder / "config.json"
    file.write_text(json.dumps(TINY_CONFIG))
    return str(file)


def request_file(folder: Path, **parts: Any) -> str:
    """Write a small training request and return its path."""
    file = folder / "request.json"
    file.write_text(json.dumps(train(**parts)))
    return str(file)
