"""transformers, by itself."""
