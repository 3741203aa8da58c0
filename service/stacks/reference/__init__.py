"""The textbook's stack, which no program is."""
