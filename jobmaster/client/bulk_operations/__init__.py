"""Bulk operations: one change of every job that fits a filter."""
