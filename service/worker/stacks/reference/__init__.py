"""The textbook's mixed precision."""
