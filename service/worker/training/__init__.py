"""One rank's training step: the job, its model as the stack shards it, its optimizer, and the steps run.

Only a worker's child process imports what here loads torch, and while a step runs it changes how parts of torch
behave (`recording/patches.py`).
"""
