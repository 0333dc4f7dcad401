"""Jobs that hold a unique key."""
