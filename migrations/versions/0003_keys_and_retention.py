"""Who asked: keys beside jobs and plans, and when a plan was last asked for.

Columns are added, none is changed: a process of the version before goes on working beside this one.
What the columns mean is said in `service/persistence/tables.py`.
"""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision: str | None = "0002"
branch_labels: str | None = None
depends_on: str | None = None

_UP = """
ALTER TABLE plans ADD COLUMN last_asked_at timestamptz NOT NULL DEFAULT now();
CREATE INDEX plans_last_asked_at_idx ON plans (last_asked_at);

ALTER TABLE jobs ADD COLUMN key_id text CONSTRAINT jobs_key_id_fkey REFERENCES api_keys (key_id);
CREATE INDEX jobs_key_newest_idx ON jobs (key_id, created_at DESC, job_id DESC);

CREATE TABLE plan_readers (
    key_id text NOT NULL CONSTRAINT plan_readers_key_id_fkey REFERENCES api_keys (key_id) ON DELETE CASCADE,
    plan_id text NOT NULL CONSTRAINT plan_readers_plan_id_fkey REFERENCES plans (plan_id) ON DELETE CASCADE,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT plan_readers_pkey PRIMARY KEY (key_id, plan_id)
);
CREATE INDEX plan_readers_plan_id_idx ON plan_readers (plan_id);
"""

_DOWN = """
DROP TABLE plan_readers;
DROP INDEX jobs_key_newest_idx;
ALTER TABLE jobs DROP COLUMN key_id;
DROP INDEX plans_last_asked_at_idx;
ALTER TABLE plans DROP COLUMN last_asked_at;
"""


def upgrade() -> None:
    """Add the columns and the table."""
    op.execute(_UP)


def downgrade() -> None:
    """Take them away; who may see what is lost."""
    op.execute(_DOWN)
