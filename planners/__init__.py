"""Pure planners: a frozen question in, a frozen plan out.

Nothing here reads a clock, an environment variable or a random number, so that
the same question on the same version always has the same answer.
"""

PLANNER_VERSION = "0.1.0"
