"""Every allocation of a step written down, replayed through an allocator and told."""
