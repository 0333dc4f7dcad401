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
        left = len(self._waiting)  # what comes meanwhile is for the next tick
        while left > 0:
            lines = self._take(min(left, LINES_MAX))
            left -= len(lines)
            if not lines:
                break
            try:
                await self._outcomes.report_progress(lines)
            except (Unavailable, Refused):
                for line in lines:
                    report = line.token, RunProgress(done=line.done, total=line.total, text=line.text)
                    self._waiting.setdefault(line.job_id, report)
                break
        return EVERY_SECONDS

    def _take(self, count: int) -> list[ProgressLine]:
        # Threads add to it meanwhile: no loop over the mapping itself.
        lines: list[ProgressLine] = []
        while len(lines) < count and self._waiting:
            job_id = next(iter(self._waiting))
            token, progress = self._waiting.pop(job_id)
            lines.append(ProgressLine(job_id, token, progress.done, progress.total, progress.text))
        return lines
