"""Checks the promises of circuit breakers. Everything is counted again from what was reported and written."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jobmaster.model.ids import text
from tests.simulation.master.tables import BreakerRow, Tables


class Report(NamedTuple):
    """Runs of one breaker that an agent has reported."""

    name: str
    at_us: int
    calls: int
    failures: int


class Barred(NamedTuple):
    """What agents that obey a version of the pauses start of the jobs of a breaker."""

    version: int
    is_open: bool
    trials: frozenset[bytes]


class BreakerChecks:
    """A breaker opens when the reports say so, and for no other reason; half-open, its trials are bounded."""

    def __init__(self, broken: Callable[[str, str], None]) -> None:
        self._broken = broken
        self.reports: list[Report] = []
        self._latest: dict[tuple[str, bytes], int] = {}
        self._barred: dict[str, list[Barred]] = {}
        self.forgotten = False
        """A failover has forgotten commits, and with them perhaps results and changes."""

    def reported(self, name: str, agent_id: bytes, at_us: int, calls: int, failures: int) -> None:
        """A report is taken for the first time.

        After the server's clock was put back, a report counts as of the later time of the one before it of its agent.
        """
        at_us = self._latest[name, agent_id] = max(at_us, self._latest.get((name, agent_id), 0))
        self.reports.append(Report(name, at_us, calls, failures))

    def _opens(self, row: BreakerRow, first: int, now_us: int, shorter: float) -> bool:
        """Whether so many of the reports open it. Lines hold the reports of a sixtieth of the window.

        Args:
            shorter: share of the window that is looked at.
        """
        since = max(row.changed_us, now_us - int(row.window_seconds * 1e6 * shorter))
        mine = [each for each in self.reports[:first] if each.name == row.name and each.at_us > since]
        calls, failures = sum(each.calls for each in mine), sum(each.failures for each in mine)
        return failures > 0 and calls >= row.min_calls and failures >= row.failures * calls

    def stays(self, row: BreakerRow, reports: int, now_us: int) -> None:
        """An evaluation has changed nothing, by the first so many reports."""
        certain = self._opens(row, reports, now_us, 0.9) and self._opens(row, reports, now_us, 1.0)
        if row.state == "CLOSED" and certain and not self.forgotten:
            self._broken("breaker", f"{row.name} stays closed although its runs have failed")

    def changes(self, tables: Tables, before: BreakerRow, after: BreakerRow) -> None:
        """A breaker changes its state."""
        if after.epoch <= before.epoch:
            self._broken("breaker", f"the epoch of {before.name} falls from {before.epoch} to {after.epoch}")
        if after.actor != "breaker" or self.forgotten:
            return
        ended = [
            each.failed for (name, _), each in tables.breaker_trials.items()
            if name == before.name and each.epoch == before.epoch and each.failed is not None
        ]  # fmt: skip
        justified = {
            ("CLOSED", "OPEN"): self._opens(before, len(self.reports), after.changed_us, 1.1),
            ("OPEN", "HALF_OPEN"): before.until_us is not None and before.until_us <= after.changed_us,
            ("HALF_OPEN", "OPEN"): any(ended),
            ("HALF_OPEN", "CLOSED"): bool(ended) and not any(ended),
        }
        if not justified.get((before.state, after.state), False):
            self._broken("breaker", f"{before.name} was {before.state} and becomes {after.state}: {after.reason}")

    def chosen(self, tables: Tables, row: BreakerRow) -> None:
        """Trials were chosen. (One that has given its place up may have a result all the same.)"""
        under_way = [
            each for (name, _), each in tables.breaker_trials.items()
            if name == row.name and each.epoch == row.epoch and each.failed is None and each.passed_us is None
        ]  # fmt: skip
        if len(under_way) > row.half_open:
            self._broken("breaker", f"{row.name} has {len(under_way)} trials, and {row.half_open} are allowed")

    def barred(self, tables: Tables, version: int) -> None:
        """From this version of the pauses on agents obey what the tables hold now."""
        for row in tables.breakers.values():
            trials = frozenset(
                job_id for (name, job_id), each in tables.breaker_trials.items()
                if name == row.name and each.epoch == row.epoch and each.failed is None and each.passed_us is None
            )  # fmt: skip
            known = self._barred.setdefault(row.name, [])
            known[:] = [each for each in known if each.version < version]
            known.append(Barred(version, row.state != "CLOSED", trials))

    def started(self, name: str, job_id: bytes, obeyed: int) -> None:
        """A job of the breaker starts in an agent that has confirmed this version.

        The agent may have read a later one. Under one of them the start must be allowed.
        """
        known = self._barred.get(name, [])
        before = [each for each in known if each.version <= obeyed][-1:]
        later = [each for each in known if each.version > obeyed]
        if self.forgotten or not before or any(not each.is_open or job_id in each.trials for each in (*before, *later)):
            return
        self._broken("breaker", f"{text(job_id)} is started by an agent that obeys the open breaker {name}")
