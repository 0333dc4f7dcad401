"""Signals: what a job waits for, and what sends it."""
