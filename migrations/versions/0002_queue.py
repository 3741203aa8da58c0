"""The queue's own tables and functions, as its package brings them.

A later release of the package that changes them brings the difference as SQL
too, and needs a step of its own here; a test says when.
"""

from __future__ import annotations

from alembic import op
from procrastinate.schema import SchemaManager
from psycopg import Connection

revision = "0002"
down_revision: str | None = "0001"
branch_labels: str | None = None
depends_on: str | None = None

# The packaged SQL brings none that takes everything away again. Each thing in it
# begins with the package's name. Functions that return a table's rows depend on
# the table, and it on those of its triggers: hence CASCADE. Nothing of ours refers to any.
_DROP = r"""
DROP TABLE procrastinate_events, procrastinate_periodic_defers, procrastinate_jobs, procrastinate_workers
    CASCADE;
DO $$
DECLARE
    thing regprocedure;
BEGIN
    FOR thing IN
        SELECT oid FROM pg_proc
        WHERE proname LIKE 'procrastinate\_%' AND pronamespace = current_schema()::regnamespace
    LOOP
        EXECUTE 'DROP FUNCTION ' || thing;
    END LOOP;
END
$$;
DROP TYPE procrastinate_job_to_defer_v1, procrastinate_job_event_type, procrastinate_job_status;
"""


def upgrade() -> None:
    """Apply the packaged schema."""
    _run(SchemaManager.get_schema())


def downgrade() -> None:
    """Drop all of it."""
    _run(_DROP)


def _run(script: str) -> None:
    """Run a script of many statements as it stands: nothing in it is a parameter."""
    connection = op.get_bind().connection.driver_connection
    if not isinstance(connection, Connection):
        raise TypeError(f"the migrations need psycopg, not {type(connection).__module__}")
    connection.execute(script.encode())
