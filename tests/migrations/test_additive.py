"""Each step adds first: a process of the version before goes on working beside the new tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from plimsoll.migrations import versions
from plimsoll.migrations.additive import violations

STEPS = sorted(Path(versions.__path__[0]).glob("0*.py"))
# No version ran before these. The queue's own schema comes as the script of a package.
FIRST_STEPS = ("0001_our_tables.py", "0002_queue.py")


def step(upgrade: str, *, head: str = "") -> str:
    return f"{head}\ndef upgrade() -> None:\n    {upgrade}\n"


@pytest.mark.parametrize("path", [path for path in STEPS if path.name not in FIRST_STEPS], ids=lambda path: path.stem)
def test_every_step_adds(path: Path):
    assert violations(path.read_text()) == ()


def test_the_script_of_a_package_cannot_be_read_and_is_named():
    (only,) = [path for path in STEPS if path.name == FIRST_STEPS[1]]
    assert violations(only.read_text()) == ("SchemaManager.get_schema() is no SQL that can be read here",)


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE a (b text NOT NULL); CREATE UNIQUE INDEX i ON a (b); ALTER TABLE a DROP COLUMN b",
        "CREATE INDEX i ON jobs (state)",
        "CREATE TABLE a (b text NOT NULL); INSERT INTO a (b) SELECT state FROM jobs",
        "ALTER TABLE jobs ADD COLUMN b text",
        "ALTER TABLE jobs ADD COLUMN b text NOT NULL DEFAULT 'x', ADD COLUMN c numeric(3, 2)",
        "COMMENT ON TABLE jobs IS 'x' -- and DROP TABLE in a comment",
    ],
)
def test_what_adds_is_taken(sql: str):
    assert violations(step(f"op.execute({sql!r})")) == ()


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE jobs",
        "DROP INDEX i",
        "ALTER TABLE jobs DROP COLUMN b",
        "ALTER TABLE jobs RENAME COLUMN a TO b",
        "ALTER TABLE jobs ALTER COLUMN a TYPE text",
        "ALTER TABLE jobs ADD COLUMN b text NOT NULL",
        "ALTER TABLE jobs ADD COLUMN b text, DROP COLUMN c",
        "ALTER TABLE jobs ADD CONSTRAINT c CHECK (a > 0)",
        "CREATE UNIQUE INDEX i ON jobs (state)",
        "UPDATE jobs SET state = 'failed'",
        "DELETE FROM jobs",
        "INSERT INTO jobs (state) VALUES ('failed')",
    ],
)
def test_what_does_more_is_named(sql: str):
    (found,) = violations(step(f"op.execute({sql!r})"))
    assert found == f"{sql.lower()!r} does more than add"


def test_alembics_own_operations_are_looked_at_too():
    assert violations(step("op.drop_column('jobs', 'a')"))[0] == "op.drop_column does more than add"


def test_what_nobody_reads_any_more_may_go():
    assert violations(step("op.execute('DROP TABLE old')", head='unread_since = "0.2.0"')) == ()
