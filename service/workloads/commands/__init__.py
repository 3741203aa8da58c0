"""Launch commands: the words that a container starts, and the flags in them."""
