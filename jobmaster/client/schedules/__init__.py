"""Schedules of a cluster: ``cluster.schedules``."""
