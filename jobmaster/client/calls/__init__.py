"""Calls of a cluster, by what they are about, and the parts that they share."""
