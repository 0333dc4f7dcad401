"""Batches: jobs that are submitted as one, counted as one, and followed by callbacks."""
