"""Bringing a database to this version's tables, however many replicas do so at once."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy.exc import InterfaceError, OperationalError

from plimsoll.service.ground.database_address import sqlalchemy_url
from plimsoll.service.ground.errors import DatabaseUnavailable

# Any number does that no other lock in this database has.
_MIGRATION_LOCK = 0x706C696D_00000002

_CONNECT_TIMEOUT_SECONDS = 5


def upgrade(url: str, revision: str = "head") -> None:
    """Apply every step that is missing, up to `revision`, all of them or none.

    One process at a time: the others wait, and find nothing left to do. Raises DatabaseUnavailable.
    """
    _migrate(url, lambda config: command.upgrade(config, revision))


def downgrade(url: str, revision: str = "-1") -> None:
    """Take steps back to `revision`, the last one unless told otherwise; what they hold is lost.

    Raises DatabaseUnavailable.
    """
    _migrate(url, lambda config: command.downgrade(config, revision))


def current_revision(url: str) -> str | None:
    """Return the last step that was applied, None for an empty database; raises DatabaseUnavailable."""
    engine = _engine(url)
    try:
        with engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()
    except (OperationalError, InterfaceError) as error:
        raise _unavailable(error) from error


def migration_config() -> Config:
    """Return Alembic's configuration for the steps that this version brings."""
    config = Config()
    config.set_main_option("script_location", str(files("plimsoll.migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _migrate(url: str, run: Callable[[Config], None]) -> None:
    config = migration_config()
    try:
        with _engine(url).begin() as connection:
            # Given back with the transaction, so that a migration that dies leaves no lock behind.
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
            config.attributes["connection"] = connection
            run(config)
    except (OperationalError, InterfaceError) as error:
        raise _unavailable(error) from error


def _engine(url: str) -> sa.Engine:
    return sa.create_engine(
        sqlalchemy_url(url), poolclass=sa.NullPool, connect_args={"connect_timeout": _CONNECT_TIMEOUT_SECONDS}
    )


def _unavailable(error: OperationalError | InterfaceError) -> DatabaseUnavailable:
    return DatabaseUnavailable(f"The database does not answer: {str(error.orig).strip()}")
