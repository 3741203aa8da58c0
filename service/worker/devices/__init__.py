"""Which accelerators and how much memory this machine has."""
