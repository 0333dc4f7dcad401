"""Named locks, and actions that run once."""
