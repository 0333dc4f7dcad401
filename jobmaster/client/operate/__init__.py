"""What operators do to agents and buckets."""
