"""Commands for people at a terminal, and for probes: completion, health, live figures."""
