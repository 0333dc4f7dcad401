"""Logs of jobs."""

from __future__ import annotations

from jobmaster.master.driver.connection import StatementRunner, to_us
from jobmaster.model.job_log import LogLevel, LogLine
from jobmaster.ports import JobLines

_LINE, _PLACE, _RUN = 6, 3, 2
"""Numbers of columns."""


class JobLogs:
    """``jobmaster.ports.JobLogs`` on PostgreSQL."""

    def __init__(self, data: StatementRunner) -> None:
        self._data = data

    async def keep(self, batch: JobLines) -> None:
        """Add lines, and drop those beyond the bounds."""
        values = [
            [row[column] for row in rows]
            for rows, columns in ((batch.lines, _LINE), (batch.surplus, _PLACE), (batch.old_runs, _RUN))
            for column in range(columns)
        ]
        await self._data.write("job_logs/keep", *values)

    async def read(self, job_id: bytes, after: tuple[int, int], limit: int) -> list[LogLine]:
        """The first lines of a job after a token and a number, run by run."""
        return [
            LogLine(
                token=row["token"],
                number=row["number"],
                at_us=to_us(row["at"]),
                level=LogLevel(row["level"]),
                text=row["text"],
            )
            for row in await self._data.read("job_logs/read", job_id, *after, limit)
        ]
