"""Who asks, and whether they may: before a byte of the body is read."""
