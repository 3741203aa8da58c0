"""Level `trace`: a training step on fake tensors, every allocation recorded, against the plan."""
