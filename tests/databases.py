"""Databases for tests: made from one migrated template, emptied after a test and given to the next one.

Making a database writes megabytes, deleting its rows next to nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
from psycopg import sql
from sqlalchemy.engine import make_url

from plimsoll.service.persistence.upgrade import upgrade
from plimsoll.service.running.postgres.embedded import EmbeddedPostgres

_TABLES = """
    SELECT relname::text FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname <> 'alembic_version' ORDER BY relname
"""
_END_OTHERS = """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@dataclass(slots=True)
class Databases:
    """The databases of one server."""

    server: EmbeddedPostgres
    _tables: list[str] = field(default_factory=list)
    _free: list[str] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @contextmanager
    def empty(self) -> Iterator[str]:
        """Yield the URL of a database without any table, dropped afterwards."""
        name = self._create("template1")
        yield self.url(name)
        self._drop(name)

    @contextmanager
    def migrated(self) -> Iterator[str]:
        """Yield the URL of a database with every table and no row."""
        if not self._tables:
            self._create_template()
        name = self._free.pop() if self._free else self._create("migrated")
        yield self.url(name)
        if self._make_empty(name):
            self._free.append(name)
        else:
            self._drop(name)

    def url(self, name: str) -> str:
        return make_url(self.server.url).set(database=name).render_as_string(hide_password=False)

    def _create_template(self) -> None:
        self._execute(sql.SQL("CREATE DATABASE migrated"))
        upgrade(self.url("migrated"))
        with self._connect("migrated") as connection:
            self._tables = [name for (name,) in connection.execute(_TABLES)]

    def _create(self, template: str) -> str:
        name = f"test_{next(self._numbers)}"
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
        self._execute(create.format(sql.Identifier(name), sql.Identifier(template)))
        return name

    def _drop(self, name: str) -> None:
        self._execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def _make_empty(self, name: str) -> bool:
        """Delete every row, and return whether the tables are still those that were migrated."""
        with self._connect(name) as connection:
            connection.execute(_END_OTHERS)
            if [table for (table,) in connection.execute(_TABLES)] != self._tables:
                return False
            # As a replica: no trigger and no foreign key minds the order.
            connection.execute("SET session_replication_role = replica")
            deletions = (sql.SQL("DELETE FROM {}").format(sql.Identifier(table)) for table in self._tables)
            connection.execute(sql.SQL("; ").join(deletions))
        return True

    def _execute(self, statement: sql.Composable) -> None:
        with self._connect("postgres") as connection:
            connection.execute(statement)

    def _connect(self, name: str) -> psycopg.Connection:
        return psycopg.connect(self.server.conninfo, dbname=name, autocommit=True)
