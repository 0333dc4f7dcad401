"""Bounds on lines about single jobs: a cluster in which every job fails writes a few lines a minute for each handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jobmaster_agents.event_log import Event

LINES = 10
"""Lines for each handler and event ..."""
WINDOW_SECONDS = 60.0
"""... in this time."""


class _Window(NamedTuple):
    """What has been logged about one handler since a moment."""

    since: float
    lines: int
    left_out: int


class LogRateLimit:
    """Decides whether one more line is logged; the next line after a gap has the number of those left out.

    Args:
        now: seconds on a clock that only goes forward.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._windows: dict[tuple[str, Event], _Window] = {}

    def admit(self, handler: str, event: Event) -> int | None:
        """How many lines were left out before this one; ``None``: there have been enough lines.

        Args:
            handler: its name, from a bounded set of names.
        """
        key, now = (handler, event), self._now()
        since, lines, left_out = self._windows.get(key, _Window(now, 0, 0))
        if now - since >= WINDOW_SECONDS:
            since, lines = now, 0
        if lines >= LINES:
            self._windows[key] = _Window(since, lines, left_out + 1)
            return None
        self._windows[key] = _Window(since, lines + 1, 0)
        return left_out
