"""`python -m api`: the API alone, on the database that PLIMSOLL_DATABASE_URL names."""

from __future__ import annotations

from api.main import run_api
from service.settings import Settings

if __name__ == "__main__":
    run_api(Settings())
