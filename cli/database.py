"""`plimsoll db`: the schema of the configured database, or of the one that `plimsoll serve` runs on this machine."""

from __future__ import annotations

import sys

from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.service.ground.settings import Settings
from plimsoll.service.persistence.upgrade import upgrade
from plimsoll.service.running.postgres.embedded import running_server_url


def upgrade_database() -> int:
    """Bring the schema up to date; return 0, or 2 where there is no database to reach."""
    settings = Settings()
    try:
        upgrade(str(settings.database_url or running_server_url(settings.data_dir / "postgres")))
    except PlimsollError as error:
        sys.stderr.write(f"{error.detail}\n")
        return 2
    sys.stdout.write("The schema is up to date.\n")
    return 0
