"""The process of its own in which a job runs: started, limited, listened to and ended."""
