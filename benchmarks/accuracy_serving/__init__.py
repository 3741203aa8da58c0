"""The serving planner against public start-up logs and public latencies."""
