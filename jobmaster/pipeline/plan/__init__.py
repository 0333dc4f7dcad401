"""Bucket counts for each lane and priority: a formula narrows the candidates, a replay of the real arrivals decides."""
