"""Reads for operators."""
