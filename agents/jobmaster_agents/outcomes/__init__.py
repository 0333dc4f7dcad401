"""What an attempt ended as: built, written to the master, acknowledged in the store, kept while the master is away."""
