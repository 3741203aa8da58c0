"""A job to prove: what is asked, what its stack does, and why one is refused. Nothing here loads torch."""
