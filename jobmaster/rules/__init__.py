"""Decisions as pure functions: the only place that answers "may it?". Time and randomness come as arguments."""
