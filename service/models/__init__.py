"""Which model a request means, and what it is in numbers."""
