"""Results of many jobs: wait for their ends, then read the results, some hundred in one statement."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from jobmaster.client.jobs.existence import not_found
from jobmaster.client.jobs.result_waiter import ResultWaiter
from jobmaster.clock import Clock
from jobmaster.codec import decode_json
from jobmaster.encryption import CannotOpen, PayloadCipher, SealKind
from jobmaster.handlers import Handlers
from jobmaster.model import ids
from jobmaster.model.errors import JobFailed, JobMasterError, NotFound, WaitTimeout
from jobmaster.model.job import JobState
from jobmaster.ports import EndedRow, Queries

RESULTS_PER_QUERY = 500
"""Jobs whose results one statement reads."""


class Results:
    """Results by job, decoded by the return annotation of the handler where that is declared here."""

    def __init__(self, queries: Queries, handlers: Handlers, clock: Clock, cipher: PayloadCipher | None = None) -> None:
        self._queries = queries
        self._handlers = handlers
        self._clock = clock
        self._cipher = cipher

    async def all_of(
        self, job_ids: Sequence[bytes], doubtful: Collection[bytes], waiter: ResultWaiter, timeout: float | None
    ) -> list[Any]:
        """Result of each job, in order, when all of them have succeeded.

        Args:
            doubtful: those of the jobs that may not exist.

        Raises:
            JobFailed: one ended in another way; at once, though others are not over.
            WaitTimeout, NotFound: as ``ResultWaiter.until``.
        """
        async with aclosing(waiter.each(job_ids, is_final, timeout, doubtful)) as batches:
            async for batch in batches:
                failed = [job_id for job_id, state in batch.items() if state is not JobState.SUCCEEDED]
                if failed:
                    _raise_first(await self.of(failed[:1]))
        values = await self.of(job_ids)
        _raise_first(values)
        return values

    async def each_of(
        self, job_ids: Sequence[bytes], doubtful: Collection[bytes], waiter: ResultWaiter, timeout: float | None
    ) -> list[Any]:
        """Result of each job, in order, or the exception in its place."""
        ends = None if timeout is None else self._clock.boottime() + timeout
        without: dict[bytes, Exception] = {}
        waited_for = set(job_ids)
        while waited_for:
            left = None if ends is None else max(ends - self._clock.boottime(), 0.0)
            try:
                async with aclosing(waiter.each(waited_for, is_final, left, doubtful)) as batches:
                    async for batch in batches:
                        waited_for.difference_update(batch)
            except NotFound as error:
                without |= {job_id: not_found([job_id]) for job_id in error.id_bytes}
                waited_for.difference_update(error.id_bytes)
            except WaitTimeout as error:
                without |= dict.fromkeys(waited_for, error)
                break
        values = iter(await self.of([job_id for job_id in job_ids if job_id not in without]))
        return [without[job_id] if job_id in without else next(values) for job_id in job_ids]

    async def of(self, job_ids: Sequence[bytes]) -> list[Any]:
        """Result, or the exception in its place, of each job, in order. The jobs have ended."""
        rows: dict[bytes, EndedRow] = {}
        wanted = list(dict.fromkeys(job_ids))
        for start in range(0, len(wanted), RESULTS_PER_QUERY):
            rows.update(await self._queries.ended(wanted[start : start + RESULTS_PER_QUERY]))
        return [self._result(job_id, rows.get(job_id)) for job_id in job_ids]

    def _result(self, job_id: bytes, row: EndedRow | None) -> Any:
        if row is None:
            return NotFound(f"job {ids.text(job_id)} has been dropped by retention")
        if self._cipher is not None:
            try:
                row = _opened(self._cipher, row)
            except CannotOpen as error:
                return error
        if row.state is not JobState.SUCCEEDED:
            return _failed(row)
        handler = self._handlers.get(row.handler)
        if handler is None:
            return None if row.result is None else decode_json(row.result)
        try:
            return handler.decode_result(row.result)
        except (msgspec.DecodeError, ValueError) as error:
            return JobMasterError(
                f"the result of job {ids.text(job_id)} does not fit the return annotation of {row.handler!r}: {error}",
                hint="the job was run by another version of the handler; cluster.get(job).result_value has the plain value",
            )


def _opened(cipher: PayloadCipher, row: EndedRow) -> EndedRow:
    """The outcome opened, where it was sealed."""
    result, error = row.result, row.error
    return row._replace(
        result=None if result is None else cipher.open(SealKind.RESULT, row.handler, row.id, result),
        error=None if error is None else cipher.open_error(row.handler, row.id, error),
    )


def is_final(state: JobState | None) -> bool:
    """True when the job has ended."""
    return state is not None and state.final


def _raise_first(values: Sequence[Any]) -> None:
    for value in values:
        if isinstance(value, JobMasterError):
            raise value


def _failed(row: EndedRow) -> JobFailed:
    detail = f": {row.error.type}: {row.error.message}" if row.error is not None else ""
    return JobFailed(
        f"job {ids.text(row.id)} ({row.handler}) ended as {row.state.value}{detail}", state=row.state, info=row.error
    )
