"""The buckets of an agent: opened, checked against the master and the store, completed, lost."""
