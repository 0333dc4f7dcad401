"""The way of a job into an agent: from the lists of a bucket, and from the master when it is due."""
