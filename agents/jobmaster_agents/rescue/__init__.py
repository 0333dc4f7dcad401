"""Detection of dead agents, and evacuation of their buckets to the master."""
