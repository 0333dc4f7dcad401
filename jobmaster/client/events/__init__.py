"""Events of a cluster: as they happen, and as the master has recorded them."""
