"""Decisions as pure functions. Time and randomness are arguments.

The moves that a job or a bucket may make are listed in ``jobmaster.specification``.
"""
