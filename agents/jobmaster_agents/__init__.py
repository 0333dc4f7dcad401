"""The runtime of an agent: its process, its supervisor, and the parts that own buckets and run jobs."""
