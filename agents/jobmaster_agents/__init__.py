"""The runtime: processes that own buckets, and one file per duty."""
