"""Sends the lines of runs (``ctx.log``, ``logging``) to the master: every second, and when outcomes are written.

No outcome waits for them. While the master does not answer they wait in memory, within bounds: of each run those that would
be kept anyway, of all runs so many bytes. A process that dies takes its last second of them along.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from threading import Lock

from jobmaster.model.errors import Refused, Unavailable
from jobmaster.model.job_log import RUNS_KEPT, LogLevel, LogLine
from jobmaster.ports import JobLines, KeptJobLogs, OldRuns, StoredLine, SurplusLines
from jobmaster.telemetry import Telemetry

EVERY_SECONDS = 1.0
STATEMENT_LINES = 1000
STATEMENT_BYTES = 1024 * 1024
WAITING_BYTES_MAX = 32 * 1024 * 1024
"""Text that waits in memory; further lines are dropped and counted."""
_LINE_BYTES = 200
"""What a line costs beside its text."""

Run = tuple[bytes, int]
"""Job and token."""


class _Waiting:
    """The lines of one run that were not sent yet."""

    __slots__ = ("lines", "lowest")

    def __init__(self) -> None:
        self.lines: deque[tuple[LogLine, int]] = deque()
        """With their sizes in bytes."""
        self.lowest = 1
        """Lines of the run below this number are dropped."""


class JobLogWriter:
    """``jobmaster.handlers.run_log.LogSink`` of an agent, and the periodic task that sends what it was given."""

    name = "job-log"

    def __init__(self, job_logs: KeptJobLogs, telemetry: Telemetry) -> None:
        self._job_logs = job_logs
        self.kicked = asyncio.Event()
        self._runs: dict[Run, _Waiting] = {}
        self._bytes = 0
        self._lock = Lock()
        self._dropped = 0
        telemetry.read_from("log_lines_dropped", lambda: self._dropped)

    def keep(self, job_id: bytes, line: LogLine, lowest: int) -> None:
        """Take over a line. May be called on any thread."""
        size = len(line.text.encode()) + _LINE_BYTES
        with self._lock:
            waiting = self._runs.get((job_id, line.token))
            if waiting is not None:
                waiting.lowest = lowest
                self._drop_surplus(waiting)
            if self._bytes + size > WAITING_BYTES_MAX:
                self._dropped += 1
                return
            if waiting is None:
                waiting = self._runs[job_id, line.token] = _Waiting()
                waiting.lowest = lowest
            waiting.lines.append((line, size))
            self._bytes += size

    def hurry(self) -> None:
        """Runs have ended: send their lines now. On the loop's thread."""
        if self._runs:
            self.kicked.set()

    async def tick(self) -> float:
        """Send what waits; seconds until the next tick."""
        with self._lock:
            left = sum(
                len(waiting.lines) for waiting in self._runs.values()
            )  # what comes meanwhile is for the next tick
        while left > 0 and (batch := self._take(min(left, STATEMENT_LINES))).lines:
            left -= len(batch.lines)
            try:
                await self._job_logs.keep(batch)
            except Refused:  # sent again, they would keep all lines that follow back
                self._dropped += len(batch.lines)
            except Unavailable:
                self._put_back(batch)
                break
        return EVERY_SECONDS

    def _drop_surplus(self, waiting: _Waiting) -> None:
        while waiting.lines and waiting.lines[0][0].number < waiting.lowest:
            self._bytes -= waiting.lines.popleft()[1]

    def _take(self, most: int) -> JobLines:
        """Lines of one statement, those of the first runs. A run with more lines comes last the next time."""
        batch = JobLines([], [], [])
        taken = 0
        with self._lock:
            for run in list(islice(self._runs, most)):
                if len(batch.lines) >= most or taken >= STATEMENT_BYTES:
                    break
                (job_id, token), waiting = run, self._runs.pop(run)
                if waiting.lines and waiting.lines[0][0].number == 1 and token > RUNS_KEPT:
                    batch.old_runs.append(OldRuns(job_id, token - RUNS_KEPT))
                if waiting.lowest > 1:
                    batch.surplus.append(SurplusLines(job_id, token, waiting.lowest))
                while waiting.lines and len(batch.lines) < most and taken < STATEMENT_BYTES:
                    line, size = waiting.lines.popleft()
                    taken += size
                    batch.lines.append(StoredLine(job_id, token, line.number, line.at_us, line.level, line.text))
                if waiting.lines:
                    self._runs[run] = waiting
            self._bytes -= taken
        return batch

    def _put_back(self, batch: JobLines) -> None:
        """The lines of a statement that failed, before those that have come since."""
        with self._lock:
            for job_id, token, number, at_us, level, text in reversed(batch.lines):
                waiting = self._runs.setdefault((job_id, token), _Waiting())
                line = LogLine(token=token, number=number, at_us=at_us, level=LogLevel(level), text=text)
                size = len(text.encode()) + _LINE_BYTES
                waiting.lines.appendleft((line, size))
                self._bytes += size
            for job_id, token, lowest in batch.surplus:
                waiting = self._runs.setdefault((job_id, token), _Waiting())
                waiting.lowest = max(waiting.lowest, lowest)
            for waiting in self._runs.values():
                self._drop_surplus(waiting)
