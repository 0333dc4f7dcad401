"""Sends the reports of handlers (``ctx.progress``) to the master, at most one of each run a second.

A report is a help for people. It is kept in memory until the next second, the last one of a run wins, and no outcome waits
for it. While the master does not answer, the last reports wait. A process that dies takes its last second of them along.
"""

from __future__ import annotations

from jobmaster.model.errors import Refused, Unavailable
from jobmaster.model.run_progress import RunProgress
from jobmaster.ports import ProgressLine, ReportedProgress
from jobmaster.telemetry import Telemetry

EVERY_SECONDS = 1.0
LINES_MAX = 1000
"""Reports of one statement."""
WAITING_MAX = 10_000
"""Runs whose reports wait in memory; those of further runs are dropped and counted."""


class RunProgressWriter:
    """Periodic task. ``note`` may be called on any thread."""

    name = "run-progress"

    def __init__(self, outcomes: ReportedProgress, telemetry: Telemetry) -> None:
        self._outcomes = outcomes
        self._waiting: dict[bytes, tuple[int, RunProgress]] = {}
        """Job -> token of the run and its last report."""
        self._dropped = 0
        telemetry.read_from("progress_dropped", lambda: self._dropped)

    def note(self, job_id: bytes, token: int, progress: RunProgress) -> None:
        """Take over a report."""
        if len(self._waiting) >= WAITING_MAX and job_id not in self._waiting:
            self._dropped += 1
            return
        self._waiting[job_id] = token, progress

    async def tick(self) -> float:
        """Store what has come since the last tick; seconds until the next one."""
        taken = self._take_all()
        sent = 0
        try:
            while sent < len(taken):
                lines = [
                    ProgressLine(job_id, token, progress.done, progress.total, progress.text)
                    for job_id, (token, progress) in taken[sent : sent + LINES_MAX]
                ]
                await self._outcomes.report_progress(lines)
                sent += len(lines)
        except (Unavailable, Refused):
            pass
        finally:
            for job_id, report in taken[sent:]:
                self._waiting.setdefault(job_id, report)
        return EVERY_SECONDS

    def _take_all(self) -> list[tuple[bytes, tuple[int, RunProgress]]]:
        """What has come so far. Threads add to the mapping meanwhile: a loop over it would fail, and a new mapping in its
        place would lose what a thread adds to the old one."""
        return [self._waiting.popitem() for _ in range(len(self._waiting))]
