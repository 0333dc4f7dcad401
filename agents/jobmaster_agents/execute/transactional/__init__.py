"""Handlers that record their own outcome, in a transaction or by a confirmation."""
