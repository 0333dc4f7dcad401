"""The lease of an agent: renewals, store terms while the master is away, and the check of the clocks."""
