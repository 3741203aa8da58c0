"""One program of events for each way in which stacks hold weights, and the quantities that it adds up."""
