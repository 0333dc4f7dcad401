"""Tenants: what waits and runs for each."""
