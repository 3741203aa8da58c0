"""Level `count`: the planner's weights against those of the class that transformers builds, name by name."""
