"""Levels `trace` and `device` of a serving plan."""
