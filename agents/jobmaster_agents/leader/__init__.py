"""What one agent does for the whole cluster while it holds the leader's lease."""
