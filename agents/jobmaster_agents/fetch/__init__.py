"""How an agent gets jobs: from the lists of a bucket, and from the master when they are due."""
