"""How long a test waits before it takes a wait for a hang. One place, because no test may depend on the machine's speed.

A limit ends a hang and says nothing about speed: it is at least ten times what the slowest test takes alone on an idle
machine, so that a machine with other work delays a test and does not fail it. A test that passes never waits that long.
Without a guard that it proves a test does: `TEST_PATIENCE_SECONDS=20` shortens the wait while tests are written.
"""

from __future__ import annotations

import os

PATIENCE_SECONDS = float(os.environ.get("TEST_PATIENCE_SECONDS", "600"))
"""Limit of every wait that is expected to end, in seconds."""


def patient(seconds: float) -> float:
    """The limit of a wait that takes at most so many seconds on an idle machine: ten times that."""
    return min(10 * seconds, PATIENCE_SECONDS)
