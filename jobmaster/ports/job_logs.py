"""Logs of jobs in the master, as agents and clients use them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from jobmaster.model.job_log import LogLine


class StoredLine(NamedTuple):
    """A line; columns of one statement."""

    job_id: bytes
    token: int
    """Of the run that has written it."""
    number: int
    """Of the line in its run, from 1."""
    at_us: int
    level: int
    text: str


class SurplusLines(NamedTuple):
    """A run that has written more lines than are kept; columns of one statement."""

    job_id: bytes
    token: int
    lowest: int
    """Number of the first line that is kept."""


class OldRuns(NamedTuple):
    """A job whose older runs have lines that are not kept any more; columns of one statement."""

    job_id: bytes
    token: int
    """Of the last of these runs."""


class JobLines(NamedTuple):
    """What one statement adds to logs of jobs, and drops from them."""

    lines: list[StoredLine]
    surplus: list[SurplusLines]
    old_runs: list[OldRuns]


class KeptJobLogs(Protocol):
    """For an agent, whose handlers write lines."""

    async def keep(self, batch: JobLines) -> None:
        """Add lines, and drop those beyond the bounds. Sent again, nothing is added."""
        ...


class ReadJobLogs(Protocol):
    """For clients."""

    async def read(self, job_id: bytes, after: tuple[int, int], limit: int) -> list[LogLine]:
        """The first lines of a job after a token and a number, run by run."""
        ...


class JobLogs(KeptJobLogs, ReadJobLogs, Protocol):
    """All of it."""
