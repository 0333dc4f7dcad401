"""``Cluster.logs``: reading the log of a job."""

from __future__ import annotations

from jobmaster.client.jobs.job_refs import JobRef, ref_of
from jobmaster.client.lookup import JobLookup
from jobmaster.model.errors import InputError
from jobmaster.model.job_log import LogLine
from jobmaster.ports import ReadJobLogs

LIMIT, LIMIT_MAX = 1000, 10_000
"""Lines of one page: the default, and the most."""


class JobLogReader:
    """Reads logs of jobs. Made by ``Cluster``."""

    def __init__(self, job_logs: ReadJobLogs, lookup: JobLookup) -> None:
        self._job_logs = job_logs
        self._lookup = lookup

    async def logs(self, job: JobRef, *, after: LogLine | None = None, limit: int = LIMIT) -> list[LogLine]:
        """Lines that the runs of a job have written (``ctx.log``; ``logging`` in a handler with ``keep_logs``), run by run:
        one page, the next is that with ``after=page[-1]``. The lines of a run are there a second after they were written, and
        the last ones a moment after its end. They go with the row of the job.

        Args:
            limit: 1 to 10,000.

        Raises:
            NotFound: neither the master nor a bucket has the job.
            InputError: a limit or a line that there is not.
        """
        if type(limit) is not int or not 1 <= limit <= LIMIT_MAX:
            raise InputError(
                f"'limit' must be a whole number from 1 to {LIMIT_MAX}, not {limit!r}",
                hint="read the next page with after=page[-1]",
            )
        if after is not None and not isinstance(after, LogLine):
            raise InputError(
                f"'after' must be a line of the log, not {type(after).__name__}", hint="as in after=page[-1]"
            )
        job_id, bucket_id = ref_of(job)
        lines = await self._job_logs.read(job_id, (0, 0) if after is None else (after.token, after.number), limit)
        if not lines and after is None:
            await self._lookup.get(job_id, bucket_id)
        return lines
