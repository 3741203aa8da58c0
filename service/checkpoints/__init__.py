"""Checkpoints on disk: what their headers say, and whether they are of the model that their config describes."""
