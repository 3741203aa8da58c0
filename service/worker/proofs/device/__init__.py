"""Level `device`: a training step for real, with the code that traces build, against the plan.

Only a worker's child process imports this package: it loads torch.
"""
