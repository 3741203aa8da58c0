"""How Alembic reaches the database, and what it compares with our tables.

`service.persistence.upgrade` hands over its own connection, with the lock taken;
from Alembic's own command line one is opened here.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context

from plimsoll.migrations.comparison import is_ours
from plimsoll.service.ground.database_address import sqlalchemy_url
from plimsoll.service.ground.settings import Settings
from plimsoll.service.persistence.tables import metadata


def migrate(connection: sa.Connection) -> None:
    """Run what Alembic was asked to run, in the connection's transaction."""
    context.configure(
        connection=connection, target_metadata=metadata, include_name=is_ours, compare_server_default=True
    )
    with context.begin_transaction():
        context.run_migrations()


def open_and_migrate() -> None:
    """Do the same on a connection of our own."""
    url = context.get_x_argument(as_dictionary=True).get("url") or Settings().database_url
    if url is None:
        raise SystemExit("Name the database in PLIMSOLL_DATABASE_URL or with -x url=postgresql://…")
    engine = sa.create_engine(sqlalchemy_url(url), poolclass=sa.NullPool)
    with engine.begin() as connection:
        migrate(connection)


if context.is_offline_mode():
    raise SystemExit("Migrations need a database: the queue's schema is not written as SQL by itself.")
if (given := context.config.attributes.get("connection")) is not None:
    migrate(given)
else:
    open_and_migrate()
