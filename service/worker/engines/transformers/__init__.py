"""transformers' own generation."""
