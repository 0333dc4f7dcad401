"""Jobs that exist: list them, wait for them, read their results, run them again, prove that one does not exist."""
