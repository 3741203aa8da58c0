"""Answers as text that a person reads in a terminal, a hundred columns wide."""
