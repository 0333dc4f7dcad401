"""Drills: failures that would need luck to happen, played step by step with the real parts on real servers.

A drill runs in a cluster of its own that is thrown away afterwards. Order comes from awaiting each step, never from sleeping.
"""
