"""Training stacks as they are proved: what each does that changes a trace, what is its own, and what it is refused."""
