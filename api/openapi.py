"""`python -m plimsoll.api.openapi`: write the contract to `openapi.yaml`."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from plimsoll.api.app import create_app
from plimsoll.service.ground.settings import Settings

OPENAPI_FILE = Path(__file__).resolve().parents[1] / "openapi.yaml"
LINE_COLUMNS = 120


def openapi_yaml() -> str:
    """Return the application's contract as YAML."""
    contract = create_app(Settings()).openapi()
    return yaml.safe_dump(contract, sort_keys=False, allow_unicode=True, width=LINE_COLUMNS)


def main() -> None:
    """Write the file."""
    OPENAPI_FILE.write_text(openapi_yaml(), encoding="utf-8")
    sys.stdout.write(f"Wrote {OPENAPI_FILE}\n")


if __name__ == "__main__":
    main()
