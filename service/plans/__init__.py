"""Plans: what a request asks, its answer's making, keeping and readers."""
