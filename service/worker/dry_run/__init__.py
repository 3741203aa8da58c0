"""Dry runs: a plan's prediction against a run of the real model code.

Only a worker's child process imports this package: it loads torch and, while a
trace runs, changes how parts of torch behave (`patches.py`).
"""
