"""Published trainings of language models, planned as they ran and with the layout left to the planner."""
