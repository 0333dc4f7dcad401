"""The drill ``lease-race``: a rare failure, run step by step with the parts of real agents on real servers.

A drill runs in a temporary cluster. The order of its steps comes from awaiting each step, never from sleeping.
"""
