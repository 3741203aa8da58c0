"""Launch files of a plan, all of them by name."""
