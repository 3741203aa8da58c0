"""The tables, as the migrations leave them.

Times are UTC, set by the database's own clock, so that replicas agree on
their order. What clients sent and what planners answered stays JSON: its shape
belongs to the API, and the columns beside it are those that are searched.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB, UUID

from plimsoll.service.persistence.records import EVENT_KINDS, FINAL_STATES, JOB_KINDS, JOB_STATES, PLAN_KINDS

# Named by rule, so that a migration can name what it drops.
metadata = sa.MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
    }
)


def _in(column: str, values: tuple[str, ...]) -> str:
    return f"{column} IN ({', '.join(repr(value) for value in values)})"


def _one_of(column: str, values: tuple[str, ...]) -> sa.CheckConstraint:
    return sa.CheckConstraint(_in(column, values), name=column)


def _created_at(name: str = "created_at") -> sa.Column[object]:
    return sa.Column(name, sa.TIMESTAMP(timezone=True), nullable=False, server_default=sa.func.now())


plans = sa.Table(
    "plans",
    metadata,
    sa.Column("plan_id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("request", JSONB(none_as_null=True), nullable=False),
    sa.Column("model_config", JSONB(none_as_null=True)),
    # JSON, not JSONB, here and below: it leaves with the digits and the order it came with.
    sa.Column("answer", JSON, nullable=False),
    sa.Column("fits", sa.Boolean, nullable=False),
    sa.Column("verdict", sa.Text, nullable=False),
    sa.Column("summary", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("gpu", sa.Text, nullable=False),
    sa.Column("gpus", sa.Integer, nullable=False),
    sa.Column("framework", sa.Text, nullable=False),
    sa.Column("planner_version", sa.Text, nullable=False),
    sa.Column("catalogue_revision", sa.Text, nullable=False),
    sa.Column("calibration_revision", sa.Text, nullable=False),
    _created_at(),
    # To the day: what is asked for every day is kept, however old.
    _created_at("last_asked_at"),
    _one_of("kind", PLAN_KINDS),
)
sa.Index("plans_last_asked_at_idx", plans.c.last_asked_at)
sa.Index("plans_newest_idx", plans.c.created_at.desc(), plans.c.plan_id.desc())
sa.Index("plans_model_newest_idx", plans.c.model, plans.c.created_at.desc(), plans.c.plan_id.desc())
sa.Index("plans_gpu_newest_idx", plans.c.gpu, plans.c.created_at.desc(), plans.c.plan_id.desc())

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False, server_default="queued"),
    sa.Column("queue", sa.Text, nullable=False),
    sa.Column("priority", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("plan_id", sa.Text, sa.ForeignKey("plans.plan_id")),
    sa.Column("request", JSONB(none_as_null=True), nullable=False),
    sa.Column("estimate", JSON(none_as_null=True)),
    sa.Column("progress", JSON(none_as_null=True)),
    sa.Column("attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("max_attempts", sa.Integer, nullable=False),
    # Names the attempt that may write. A worker that was paused and then
    # replaced still holds the old one, and everything it writes is refused.
    sa.Column("attempt_token", UUID(as_uuid=True)),
    sa.Column("worker", sa.Text),
    sa.Column("queue_job_id", sa.BigInteger),
    sa.Column("cancel_requested", sa.Boolean, nullable=False, server_default=sa.false()),
    _created_at(),
    sa.Column("started_at", sa.TIMESTAMP(timezone=True)),
    sa.Column("finished_at", sa.TIMESTAMP(timezone=True)),
    sa.Column("result", JSON(none_as_null=True)),
    sa.Column("error", JSON(none_as_null=True)),
    # Whose it is; null for jobs that were queued without a key.
    sa.Column("key_id", sa.Text, sa.ForeignKey("api_keys.key_id")),
    _one_of("kind", JOB_KINDS),
    _one_of("state", JOB_STATES),
    sa.CheckConstraint("attempts >= 0 AND attempts <= max_attempts", name="attempts"),
    sa.CheckConstraint(f"(finished_at IS NOT NULL) = ({_in('state', FINAL_STATES)})", name="finished_at"),
    sa.CheckConstraint("(attempt_token IS NOT NULL) = (state = 'running')", name="attempt_token"),
)
sa.Index("jobs_newest_idx", jobs.c.created_at.desc(), jobs.c.job_id.desc())
sa.Index("jobs_state_newest_idx", jobs.c.state, jobs.c.created_at.desc(), jobs.c.job_id.desc())
sa.Index("jobs_key_newest_idx", jobs.c.key_id, jobs.c.created_at.desc(), jobs.c.job_id.desc())
sa.Index("jobs_finished_at_idx", jobs.c.finished_at)
sa.Index("jobs_plan_id_idx", jobs.c.plan_id)
sa.Index("jobs_queue_job_id_idx", jobs.c.queue_job_id)

job_events = sa.Table(
    "job_events",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.job_id", ondelete="CASCADE"), nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("data", JSONB(none_as_null=True), nullable=False),
    _created_at(),
    _one_of("kind", EVENT_KINDS),
)
sa.Index("job_events_job_id_id_idx", job_events.c.job_id, job_events.c.id)

idempotency_keys = sa.Table(
    "idempotency_keys",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("route", sa.Text, primary_key=True),
    sa.Column("request_hash", sa.Text, nullable=False),
    sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.job_id", ondelete="CASCADE"), nullable=False),
    _created_at(),
)
sa.Index("idempotency_keys_job_id_idx", idempotency_keys.c.job_id)

measurements = sa.Table(
    "measurements",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("plan_id", sa.Text, sa.ForeignKey("plans.plan_id")),
    sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.job_id", ondelete="SET NULL")),
    sa.Column("level", sa.Text, nullable=False),
    sa.Column("framework", sa.Text, nullable=False),
    sa.Column("gpu", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("predicted", JSONB(none_as_null=True), nullable=False),
    sa.Column("measured", JSONB(none_as_null=True), nullable=False),
    # predicted / measured - 1; null where a report measures nothing that was predicted.
    sa.Column("relative_error", sa.Double),
    sa.Column("source", sa.Text, nullable=False),
    _created_at(),
)
sa.Index("measurements_newest_idx", measurements.c.created_at.desc(), measurements.c.id.desc())
sa.Index("measurements_plan_id_idx", measurements.c.plan_id)
# One measurement a job: a result that is written twice must not count twice.
sa.Index("measurements_job_id_key", measurements.c.job_id, unique=True)

models_seen = sa.Table(
    "models_seen",
    metadata,
    sa.Column("config_hash", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("model_type", sa.Text, nullable=False),
    sa.Column("config", JSONB(none_as_null=True), nullable=False),
    _created_at("first_seen_at"),
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("key_id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    # A hash, never the key: a copy of this table opens nothing.
    sa.Column("key_hash", sa.Text, nullable=False, unique=True),
    sa.Column("scopes", ARRAY(sa.Text), nullable=False, server_default=sa.text("'{}'::text[]")),
    _created_at(),
    sa.Column("expires_at", sa.TIMESTAMP(timezone=True)),
    sa.Column("revoked_at", sa.TIMESTAMP(timezone=True)),
)

# A plan is stored once, whoever asks for it; who asked may see it.
plan_readers = sa.Table(
    "plan_readers",
    metadata,
    sa.Column("key_id", sa.Text, sa.ForeignKey("api_keys.key_id", ondelete="CASCADE"), primary_key=True),
    sa.Column("plan_id", sa.Text, sa.ForeignKey("plans.plan_id", ondelete="CASCADE"), primary_key=True),
    _created_at(),
)
sa.Index("plan_readers_plan_id_idx", plan_readers.c.plan_id)

hardware_calibrations = sa.Table(
    "hardware_calibrations",
    metadata,
    sa.Column("gpu", sa.Text, primary_key=True),
    sa.Column("revision", sa.Text, primary_key=True),
    sa.Column("efficiencies", JSONB(none_as_null=True), nullable=False),
    sa.Column("report", JSONB(none_as_null=True), nullable=False),
    _created_at(),
)
sa.Index("hardware_calibrations_newest_idx", hardware_calibrations.c.gpu, hardware_calibrations.c.created_at.desc())

# What measured starts of a model on a GPU and an engine version taught (planners/learned.py): what is in force,
# the sum of the lessons below.
learned_starts = sa.Table(
    "learned_starts",
    metadata,
    sa.Column("model_digest", sa.Text, primary_key=True),
    sa.Column("gpu", sa.Text, primary_key=True),
    sa.Column("engine", sa.Text, primary_key=True),
    sa.Column("engine_version", sa.Text, primary_key=True),
    sa.Column("weights", sa.Text, primary_key=True),
    sa.Column("learned", JSONB(none_as_null=True), nullable=False),
    sa.Column("provenance", sa.Text, nullable=False),
    _created_at(),
)

# What each measurement taught of that; a measurement that is forgotten takes its own with it.
lessons = sa.Table(
    "lessons",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("measurement_id", sa.BigInteger, sa.ForeignKey("measurements.id", ondelete="CASCADE"), nullable=False),
    sa.Column("model_digest", sa.Text, nullable=False),
    sa.Column("gpu", sa.Text, nullable=False),
    sa.Column("engine", sa.Text, nullable=False),
    sa.Column("engine_version", sa.Text, nullable=False),
    sa.Column("weights", sa.Text, nullable=False),
    sa.Column("learned", JSONB(none_as_null=True), nullable=False),
    sa.Column("provenance", sa.Text, nullable=False),
    _created_at(),
)
sa.Index("lessons_measurement_id_idx", lessons.c.measurement_id)
