"""Pause and resume."""
