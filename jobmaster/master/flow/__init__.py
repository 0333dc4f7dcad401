"""The master's parts for limits, breakers, unique keys, batches, workflows and signals."""
