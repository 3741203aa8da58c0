"""Plans, jobs and what belongs to them.

What each column means is said in `service/persistence/tables.py`.
"""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision: str | None = None
branch_labels: str | None = None
depends_on: str | None = None

_PLANS = """
CREATE TABLE plans (
    plan_id text CONSTRAINT plans_pkey PRIMARY KEY,
    kind text NOT NULL CONSTRAINT plans_kind_check CHECK (kind IN ('train', 'infer')),
    request jsonb NOT NULL,
    model_config jsonb,
    answer json NOT NULL,
    fits boolean NOT NULL,
    verdict text NOT NULL,
    summary text NOT NULL,
    model text NOT NULL,
    gpu text NOT NULL,
    gpus integer NOT NULL,
    framework text NOT NULL,
    planner_version text NOT NULL,
    catalogue_revision text NOT NULL,
    calibration_revision text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX plans_newest_idx ON plans (created_at DESC, plan_id DESC);
CREATE INDEX plans_model_newest_idx ON plans (model, created_at DESC, plan_id DESC);
CREATE INDEX plans_gpu_newest_idx ON plans (gpu, created_at DESC, plan_id DESC);
"""

_JOBS = """
CREATE TABLE jobs (
    job_id text CONSTRAINT jobs_pkey PRIMARY KEY,
    kind text NOT NULL CONSTRAINT jobs_kind_check CHECK (kind IN ('validate', 'quantize')),
    state text NOT NULL DEFAULT 'queued'
        CONSTRAINT jobs_state_check CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
    queue text NOT NULL,
    priority integer NOT NULL DEFAULT 0,
    plan_id text CONSTRAINT jobs_plan_id_fkey REFERENCES plans (plan_id),
    request jsonb NOT NULL,
    estimate json,
    progress json,
    attempts integer NOT NULL DEFAULT 0,
    max_attempts integer NOT NULL,
    attempt_token uuid,
    worker text,
    queue_job_id bigint,
    cancel_requested boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    finished_at timestamptz,
    result json,
    error json,
    CONSTRAINT jobs_attempts_check CHECK (attempts >= 0 AND attempts <= max_attempts),
    CONSTRAINT jobs_finished_at_check
        CHECK ((finished_at IS NOT NULL) = (state IN ('succeeded', 'failed', 'cancelled'))),
    CONSTRAINT jobs_attempt_token_check CHECK ((attempt_token IS NOT NULL) = (state = 'running'))
);
CREATE INDEX jobs_newest_idx ON jobs (created_at DESC, job_id DESC);
CREATE INDEX jobs_state_newest_idx ON jobs (state, created_at DESC, job_id DESC);
CREATE INDEX jobs_finished_at_idx ON jobs (finished_at);
CREATE INDEX jobs_plan_id_idx ON jobs (plan_id);
CREATE INDEX jobs_queue_job_id_idx ON jobs (queue_job_id);

CREATE TABLE job_events (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT job_events_pkey PRIMARY KEY,
    job_id text NOT NULL CONSTRAINT job_events_job_id_fkey REFERENCES jobs (job_id) ON DELETE CASCADE,
    kind text NOT NULL CONSTRAINT job_events_kind_check CHECK (kind IN ('state', 'progress', 'result')),
    data jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX job_events_job_id_id_idx ON job_events (job_id, id);

CREATE TABLE idempotency_keys (
    key text NOT NULL,
    route text NOT NULL,
    request_hash text NOT NULL,
    job_id text NOT NULL CONSTRAINT idempotency_keys_job_id_fkey REFERENCES jobs (job_id) ON DELETE CASCADE,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT idempotency_keys_pkey PRIMARY KEY (key, route)
);
CREATE INDEX idempotency_keys_job_id_idx ON idempotency_keys (job_id);
"""

_MEASUREMENTS = """
CREATE TABLE measurements (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT measurements_pkey PRIMARY KEY,
    plan_id text CONSTRAINT measurements_plan_id_fkey REFERENCES plans (plan_id),
    job_id text CONSTRAINT measurements_job_id_fkey REFERENCES jobs (job_id) ON DELETE SET NULL,
    level text NOT NULL,
    framework text NOT NULL,
    gpu text NOT NULL,
    model text NOT NULL,
    predicted jsonb NOT NULL,
    measured jsonb NOT NULL,
    relative_error double precision,
    source text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX measurements_newest_idx ON measurements (created_at DESC, id DESC);
CREATE INDEX measurements_plan_id_idx ON measurements (plan_id);
CREATE UNIQUE INDEX measurements_job_id_key ON measurements (job_id);

CREATE TABLE hardware_calibrations (
    gpu text NOT NULL,
    revision text NOT NULL,
    efficiencies jsonb NOT NULL,
    report jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT hardware_calibrations_pkey PRIMARY KEY (gpu, revision)
);
CREATE INDEX hardware_calibrations_newest_idx ON hardware_calibrations (gpu, created_at DESC);
"""

_THE_REST = """
CREATE TABLE models_seen (
    config_hash text CONSTRAINT models_seen_pkey PRIMARY KEY,
    name text NOT NULL,
    model_type text NOT NULL,
    config jsonb NOT NULL,
    first_seen_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE api_keys (
    key_id text CONSTRAINT api_keys_pkey PRIMARY KEY,
    name text NOT NULL,
    key_hash text NOT NULL CONSTRAINT api_keys_key_hash_key UNIQUE,
    scopes text[] NOT NULL DEFAULT '{}'::text[],
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    revoked_at timestamptz
);
"""


def upgrade() -> None:
    """Create the tables and their indexes."""
    for statements in (_PLANS, _JOBS, _MEASUREMENTS, _THE_REST):
        op.execute(statements)


def downgrade() -> None:
    """Drop the tables, those first that refer to others."""
    op.execute("DROP TABLE api_keys, models_seen, hardware_calibrations")
    op.execute("DROP TABLE measurements, idempotency_keys, job_events, jobs, plans")
