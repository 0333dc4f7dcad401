"""The HTTP API: JSON over the same functions that ``Cluster`` has for programs in Python."""
