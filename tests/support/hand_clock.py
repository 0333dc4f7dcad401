"""A clock that a test turns by hand, and an agent with a fresh lease on it."""

from __future__ import annotations

from jobmaster.clock import new_id
from jobmaster.rules.lease import term
from jobmaster_agents.state.ownership import Ownership


class HandClock:
    """Stands still until told otherwise."""

    def __init__(self) -> None:
        self.now = 1000.0

    def boottime(self) -> float:
        return self.now

    def wall_us(self) -> int:
        return round(self.now * 1e6)


def trusted(clock: HandClock, lease_seconds: float = 1e6) -> Ownership:
    """An agent whose lease outlasts the test."""
    ownership = Ownership(new_id())
    ownership.trust(term(clock.now, lease_seconds))
    return ownership
