"""Workflows: their definition, their start, and what a person does with them."""
