"""Dead agents are detected, and their buckets are evacuated to the master."""
