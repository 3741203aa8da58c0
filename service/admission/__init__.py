"""What a cluster is about to launch, judged before it runs."""
