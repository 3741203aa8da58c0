from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from procrastinate.schema import SchemaManager

from plimsoll.migrations.comparison import is_ours
from plimsoll.service.ground.database_address import libpq_url, sqlalchemy_url
from plimsoll.service.ground.errors import DatabaseUnavailable
from plimsoll.service.persistence.tables import metadata
from plimsoll.service.persistence.upgrade import current_revision, downgrade, upgrade

# Of the packaged schema of procrastinate 3.10.0.
QUEUE_SCHEMA_SHA256 = "c70ec4b400a60ad9592787653aae5ae77ae41bf801d56b5bd2712751a07f2009"

CONSTRAINTS = """
    SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace AND conrelid <> 0 AND conrelid::regclass::text <> 'alembic_version'
        AND conrelid::regclass::text NOT LIKE 'procrastinate%'
"""
EVERYTHING = """
    SELECT 'class', relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace
    UNION ALL SELECT 'type', typname::text FROM pg_type WHERE typnamespace = 'public'::regnamespace
    UNION ALL SELECT 'function', oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace
"""


def rows(url: str, query: str) -> set[tuple[object, ...]]:
    with psycopg.connect(libpq_url(url)) as connection:
        return set(connection.execute(query).fetchall())


def test_the_migrations_lead_to_the_tables(empty_database_url):
    upgrade(empty_database_url)
    engine = sa.create_engine(sqlalchemy_url(empty_database_url), poolclass=sa.NullPool)
    with engine.connect() as connection:
        options = {"include_name": is_ours, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []


def test_the_migrations_lead_to_the_constraints_of_the_tables(empty_database_url):
    # Alembic does not compare check constraints, so PostgreSQL's own wording is compared.
    upgrade(empty_database_url)
    migrated = rows(empty_database_url, CONSTRAINTS)
    downgrade(empty_database_url, "base")
    engine = sa.create_engine(sqlalchemy_url(empty_database_url), poolclass=sa.NullPool)
    metadata.create_all(engine)
    assert rows(empty_database_url, CONSTRAINTS) == migrated


@pytest.mark.parametrize("revision", ["base", "0001", "0002", "0003"])
def test_one_step_down_leaves_what_was_there_before_and_the_step_up_brings_it_back(empty_database_url, revision):
    upgrade(empty_database_url, revision) if revision != "base" else downgrade(empty_database_url, "base")
    before = rows(empty_database_url, EVERYTHING)
    upgrade(empty_database_url, "+1")
    above = rows(empty_database_url, EVERYTHING)
    downgrade(empty_database_url)
    assert rows(empty_database_url, EVERYTHING) == before
    upgrade(empty_database_url, "+1")
    assert rows(empty_database_url, EVERYTHING) == above


def test_ten_replicas_may_upgrade_at_once(empty_database_url):
    with ThreadPoolExecutor(10) as replicas:
        list(replicas.map(upgrade, [empty_database_url] * 10))
    assert current_revision(empty_database_url) == "0005"


def test_an_empty_database_has_no_revision(empty_database_url):
    assert current_revision(empty_database_url) is None


def test_a_step_that_fails_leaves_nothing_of_the_steps_before_it(empty_database_url):
    # The queue's first type is there already, so that the second step fails.
    with psycopg.connect(libpq_url(empty_database_url), autocommit=True) as connection:
        connection.execute("CREATE TYPE procrastinate_job_status AS ENUM ()")
    with pytest.raises(psycopg.errors.DuplicateObject):
        upgrade(empty_database_url)
    assert current_revision(empty_database_url) is None


@pytest.mark.parametrize("migrate", [upgrade, downgrade, current_revision])
def test_a_database_that_is_away_is_said_to_be(migrate, tmp_path):
    with pytest.raises(DatabaseUnavailable, match="does not answer"):
        migrate(f"postgresql://nobody@/nothing?host={tmp_path}")


def test_the_queue_brings_the_schema_that_the_step_was_written_for():
    # Another schema needs a further step: databases that took this one must take the difference.
    assert hashlib.sha256(SchemaManager.get_schema().encode()).hexdigest() == QUEUE_SCHEMA_SHA256
