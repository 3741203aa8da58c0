"""Kernels that stacks run in place of transformers' separate operations: what they make, keep and write over."""
