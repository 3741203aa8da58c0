"""Each step adds first: a process of the version before goes on working beside the new tables.

squawk reads the SQL that Alembic would run. It judges tables; what a step does to rows that are there, and what rows
of an older process might break, is looked for here.
"""

from __future__ import annotations

import importlib
import io
import json
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from alembic import op
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext

from plimsoll.migrations import versions

# No version ran before these. The queue's own schema comes as the script of a package.
FIRST_STEPS = ("0001_our_tables", "0002_queue")
STEPS = [path.stem for path in sorted(Path(versions.__path__[0]).glob("0*.py")) if path.stem not in FIRST_STEPS]

SQUAWK = shutil.which("squawk", path=sysconfig.get_path("scripts"))
# How long others wait for a step's locks, which it holds to its end, since all steps are one transaction.
LOCKS = (
    "adding-foreign-key-constraint",
    "require-concurrent-index-creation",
    "require-lock-timeout",
    "require-statement-timeout",
)

CREATED = re.compile(r"\bcreate table (?:if not exists )?(\w+)", re.IGNORECASE)
# On a table that was there: rows that an older process reads, or a rule that rows it writes might break.
DISTURBED = re.compile(
    r"\b(?:insert into|(?<!on )(?<!for )update|(?<!on )delete from|truncate(?: table)?"
    r"|create unique index (?:concurrently )?\w+ on|alter table(?= \w+ [^;]*\badd constraint)) (?:only )?(\w+)",
    re.IGNORECASE,
)


def sql_of(upgrade: Callable[[], None]) -> str:
    """Return what `alembic upgrade --sql` would write of a step."""
    written = io.StringIO()
    context = MigrationContext.configure(dialect_name="postgresql", opts={"as_sql": True, "output_buffer": written})
    with Operations.context(context):
        upgrade()
    return written.getvalue()


def violations(sql: str) -> list[str]:
    """Return what in a step's SQL may disturb an older process; nothing for a step that only adds."""
    return [*_judged_by_squawk(sql), *_disturbed_tables(sql)]


def _judged_by_squawk(sql: str) -> Iterator[str]:
    assert SQUAWK is not None, "squawk-cli is one of the packages that the tests need"
    command = [SQUAWK, "--assume-in-transaction", "--reporter", "json", "--exclude", ",".join(LOCKS)]
    ended = subprocess.run(command, input=sql, capture_output=True, text=True, check=False)
    return (violation["rule_name"] for violation in json.loads(ended.stdout))


def _disturbed_tables(sql: str) -> Iterator[str]:
    text = " ".join(re.sub(r"--[^\n]*", "", sql).split())
    created = set(CREATED.findall(text))
    return (match[0] for match in DISTURBED.finditer(text) if match[1] not in created)


def is_unread(step: ModuleType) -> bool:
    """Return whether a step names the release from which on no version reads what it takes away."""
    return bool(getattr(step, "unread_since", None))


@pytest.mark.parametrize("name", STEPS)
def test_every_step_adds(name: str):
    step = importlib.import_module(f"{versions.__name__}.{name}")
    assert is_unread(step) or violations(sql_of(step.upgrade)) == []


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE a (b text NOT NULL); CREATE UNIQUE INDEX i ON a (b)",
        "CREATE TABLE a (b text NOT NULL); ALTER TABLE a ADD CONSTRAINT c CHECK (b != '')",
        "CREATE INDEX i ON jobs (state)",
        "CREATE TABLE a (b text NOT NULL); INSERT INTO a (b) SELECT state FROM jobs",
        "CREATE TABLE a (b text REFERENCES jobs (state) ON DELETE CASCADE ON UPDATE CASCADE)",
        "ALTER TABLE jobs ADD COLUMN b text",
        "ALTER TABLE jobs ADD COLUMN b text NOT NULL DEFAULT 'x', ADD COLUMN c numeric(3, 2)",
        "COMMENT ON TABLE jobs IS 'x' -- and DROP TABLE in a comment",
    ],
)
def test_what_adds_is_taken(sql: str):
    assert violations(f"{sql};") == []


@pytest.mark.parametrize(
    ("sql", "rule"),
    [
        ("DROP TABLE jobs", "ban-drop-table"),
        ("DROP INDEX i", "require-concurrent-index-deletion"),
        ("ALTER TABLE jobs DROP COLUMN b", "ban-drop-column"),
        ("ALTER TABLE jobs RENAME COLUMN a TO b", "renaming-column"),
        ("ALTER TABLE jobs ALTER COLUMN a TYPE text", "changing-column-type"),
        ("ALTER TABLE jobs ADD COLUMN b text NOT NULL", "adding-required-field"),
        ("ALTER TABLE jobs ADD COLUMN b text, DROP COLUMN c", "ban-drop-column"),
    ],
)
def test_what_changes_a_table_is_named(sql: str, rule: str):
    assert violations(f"{sql};") == [rule]


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("UPDATE jobs SET state = 'failed'", "UPDATE jobs"),
        ("DELETE FROM jobs", "DELETE FROM jobs"),
        ("WITH gone AS (DELETE FROM jobs RETURNING job_id) SELECT count(*) FROM gone", "DELETE FROM jobs"),
        ("INSERT INTO jobs (state) VALUES ('failed')", "INSERT INTO jobs"),
        ("TRUNCATE jobs", "TRUNCATE jobs"),
        ("CREATE UNIQUE INDEX i ON jobs (state)", "CREATE UNIQUE INDEX i ON jobs"),
        ("ALTER TABLE jobs ADD CONSTRAINT c CHECK (a > 0) NOT VALID", "ALTER TABLE jobs"),
    ],
)
def test_what_older_processes_read_or_write_against_is_named(sql: str, named: str):
    assert violations(f"{sql};") == [named]


def test_alembics_own_operations_are_looked_at_too():
    assert violations(sql_of(lambda: op.drop_column("jobs", "a"))) == ["ban-drop-column"]


def test_what_nobody_reads_any_more_may_go():
    step = ModuleType("0999_old_table_gone")
    assert not is_unread(step)
    step.unread_since = "0.2.0"
    assert is_unread(step)
