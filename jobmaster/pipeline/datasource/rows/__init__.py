"""Rows of a frame as jobs: read, checked, refused."""
