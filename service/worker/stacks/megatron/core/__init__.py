"""Megatron-Core itself, as the first rank of a stage, on fake tensors."""
