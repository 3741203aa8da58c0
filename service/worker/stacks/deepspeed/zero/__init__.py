"""DeepSpeed's engine, stood in for operation by operation."""
