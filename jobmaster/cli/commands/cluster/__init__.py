"""Commands about the cluster as a whole: its mode, its move to another master."""
