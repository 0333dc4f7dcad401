"""Limits: operators set, reset and list them."""
