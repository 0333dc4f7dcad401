"""Nouns: ids, jobs, buckets, agents, errors. Frozen structs and enums; no I/O and no clock."""
