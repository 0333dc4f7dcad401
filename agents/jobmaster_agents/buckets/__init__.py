"""The buckets of an agent: how they are opened, compared with master and store, completed and given up."""
