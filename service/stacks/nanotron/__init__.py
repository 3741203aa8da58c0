"""nanotron."""
