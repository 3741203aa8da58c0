"""What a cluster is about to launch, read from the object itself."""
