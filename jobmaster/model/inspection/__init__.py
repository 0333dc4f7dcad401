"""What operators see of a cluster."""
