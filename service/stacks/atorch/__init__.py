"""ATorch."""
