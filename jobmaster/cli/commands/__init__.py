"""One module for each command, and what only they share."""
