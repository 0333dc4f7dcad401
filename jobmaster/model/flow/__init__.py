"""Limits, breakers, unique keys, batches, workflows, signals and tenants as values."""
