"""Which jobs are not proved yet: rules by subject, asked in one order before a job is queued, and as it runs."""
