"""Commands of batches, breakers, limits, signals, tenants and workflows."""
