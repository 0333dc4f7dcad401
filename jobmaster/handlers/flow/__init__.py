"""What a handler declares of limits, breakers, ordering and unique keys."""
