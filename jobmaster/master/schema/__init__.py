"""The schema of a cluster: migrations, and indexes that are built while others write."""
