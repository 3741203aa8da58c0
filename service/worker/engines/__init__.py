"""Serving engines as they are proved: one folder each."""
