"""What an agent knows in memory: its lease and buckets, the jobs it has claimed, the stores that answer."""
