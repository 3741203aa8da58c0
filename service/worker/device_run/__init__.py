"""Real runs: a plan's prediction against steps that a device takes, with the code that dry runs build.

Only a worker's child process imports this package: it loads torch.
"""
