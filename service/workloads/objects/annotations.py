"""The annotations by which a workload says what it was planned as."""

from __future__ import annotations

# The id of a stored plan.
PLAN_ID = "plimsoll.dev/plan-id"
# A planning request, as JSON.
PLAN = "plimsoll.dev/plan"
