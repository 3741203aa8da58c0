"""What each measurement taught, so that it can be forgotten.

A table is added, none is changed: a process of the version before goes on working beside this one. What was learned
before joins it under the measurement that it names.
"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision: str | None = "0004"
branch_labels: str | None = None
depends_on: str | None = None

_UP = r"""
CREATE TABLE lessons (
    id bigint GENERATED ALWAYS AS IDENTITY,
    measurement_id bigint NOT NULL,
    model_digest text NOT NULL,
    gpu text NOT NULL,
    engine text NOT NULL,
    engine_version text NOT NULL,
    weights text NOT NULL,
    learned jsonb NOT NULL,
    provenance text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT lessons_pkey PRIMARY KEY (id),
    CONSTRAINT lessons_measurement_id_fkey
        FOREIGN KEY (measurement_id) REFERENCES measurements (id) ON DELETE CASCADE
);

CREATE INDEX lessons_measurement_id_idx ON lessons (measurement_id);

INSERT INTO lessons (measurement_id, model_digest, gpu, engine, engine_version, weights, learned, provenance)
SELECT measurements.id, model_digest, learned_starts.gpu, engine, engine_version, weights, learned, provenance
FROM learned_starts
JOIN measurements ON measurements.id = substring(provenance from '^measurement (\d{1,18})')::bigint;
"""

_DOWN = """
DROP TABLE lessons;
"""


def upgrade() -> None:
    """Add the table."""
    op.execute(_UP)


def downgrade() -> None:
    """Take it away; what is in force stays."""
    op.execute(_DOWN)
