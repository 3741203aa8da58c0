"""A training step as a program of events: what is allocated and released, in order, and the most that is ever held."""
