"""What measured starts of serving engines taught.

A table is added, none is changed: a process of the version before goes on working beside this one.
What the columns mean is said in `service/persistence/tables.py`.
"""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision: str | None = "0003"
branch_labels: str | None = None
depends_on: str | None = None

_UP = """
CREATE TABLE learned_starts (
    model_digest text NOT NULL,
    gpu text NOT NULL,
    engine text NOT NULL,
    engine_version text NOT NULL,
    weights text NOT NULL,
    learned jsonb NOT NULL,
    provenance text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT learned_starts_pkey PRIMARY KEY (model_digest, gpu, engine, engine_version, weights)
);
"""

_DOWN = """
DROP TABLE learned_starts;
"""


def upgrade() -> None:
    """Add the table."""
    op.execute(_UP)


def downgrade() -> None:
    """Take it away; what ships holds again."""
    op.execute(_DOWN)
