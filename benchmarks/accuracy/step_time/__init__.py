"""Estimated against measured step time."""
