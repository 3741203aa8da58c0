"""Proofs of plans, by strength: weights counted, a step traced on fake tensors, a step run on a device."""
