"""`python -m plimsoll.api`: the API alone, on the database that PLIMSOLL_DATABASE_URL names."""

from __future__ import annotations

from plimsoll.api.main import run_api
from plimsoll.service.ground.settings import Settings
from plimsoll.service.running.starting import told_in_a_line

if __name__ == "__main__":
    with told_in_a_line():
        settings = Settings()
    run_api(settings)
