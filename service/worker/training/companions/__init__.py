"""Models beside the one that learns, in a trace: TRL's own code asks them."""
