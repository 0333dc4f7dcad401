"""Logs of the jobs of a cluster in memory."""

from __future__ import annotations

from threading import Lock

from jobmaster.model.job_log import RUNS_KEPT, LogLine


class MemoryJobLogs:
    """``LogSink`` and ``jobmaster.ports.ReadJobLogs`` over dictionaries; lines can be read at once."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._lines: dict[bytes, list[LogLine]] = {}
        """By job, run by run."""

    def keep(self, job_id: bytes, line: LogLine, lowest: int) -> None:
        """Take over a line; those beyond the bounds go."""
        with self._lock:
            kept = [
                each
                for each in self._lines.get(job_id, ())
                if each.token > line.token - RUNS_KEPT and (each.token != line.token or each.number >= lowest)
            ]
            self._lines[job_id] = sorted([*kept, line], key=_place)

    async def read(self, job_id: bytes, after: tuple[int, int], limit: int) -> list[LogLine]:
        """The first lines of a job after a token and a number."""
        with self._lock:
            return [line for line in self._lines.get(job_id, ()) if _place(line) > after][:limit]


def _place(line: LogLine) -> tuple[int, int]:
    return line.token, line.number
