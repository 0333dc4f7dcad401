"""The lease of an agent: renewals, the store as its authority while the master is away, and the clocks."""
