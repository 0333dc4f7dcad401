"""Calls of a cluster about jobs that exist: follow them, read them, change what waits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar, Unpack, overload
from uuid import UUID

import msgspec

from jobmaster.client.bulk import IdList
from jobmaster.client.calls.parts import ClusterParts
from jobmaster.client.jobs.changes import ChangeOptions, check_change_options, due_options
from jobmaster.client.jobs.job_filters import JobFilters, checked_filter
from jobmaster.client.jobs.job_refs import JobRef, job_id_of, ref_of, watched
from jobmaster.client.jobs.listing import COUNTED, LIMIT, JobCount, JobList, count_jobs, list_jobs
from jobmaster.client.jobs.results import is_final
from jobmaster.client.lookup import confirm_run
from jobmaster.client.receipts import JobReceipt
from jobmaster.encryption import opened_view
from jobmaster.handlers import check_name
from jobmaster.model.errors import JobMasterError
from jobmaster.model.inspection.schedule_view import ScheduleView
from jobmaster.model.job import JobState, Priority, PriorityLabel
from jobmaster.model.job_change import JobChange
from jobmaster.model.job_view import Attempt, JobView

J = TypeVar("J", bound=JobRef)
R = TypeVar("R")
V = TypeVar("V", JobView, ScheduleView)


class JobCalls(ClusterParts):
    """Part of ``Cluster``."""

    # ------------------------------------------------------------ following

    async def get(self, job: JobRef) -> JobView:
        """The job as it is now; ``NotFound`` when neither the master nor a bucket has it."""
        job_id, bucket_id = ref_of(job)
        return self._opened(await self._job_lookup.get(job_id, bucket_id))

    def _opened(self, view: JobView) -> JobView:
        """The job with its payload opened, where it was sealed."""
        return opened_view(self._submit_checks.cipher, view)

    async def _get_to_submit(self, job: JobRef) -> JobView:
        """As ``get``, for a job that is to be submitted again."""
        job_id, bucket_id = ref_of(job)
        return self._opened_to_submit(await self._job_lookup.get(job_id, bucket_id))

    def _opened_to_submit(self, view: JobView) -> JobView:
        """As ``_opened``; ``NotSealed`` for plain arguments that must not get a seal by being submitted again."""
        if (cipher := self._submit_checks.cipher) is not None:
            cipher.open_arguments(view.handler, view.id_bytes, view.arguments_json)
        return self._opened(view)

    async def redacted(self, view: V) -> V:
        """A job or schedule as it may be shown: ``***`` in place of the arguments that its handler declares as
        ``secret``, and their values cut out of the error. What the command line and the pages show has been through here.
        """
        return view.redacted(await self._submit_checks.handler_lookup.secret_arguments(view.handler))

    async def state(self, job: JobRef) -> JobState:
        """The state alone."""
        return (await self.get(job)).state

    async def wait_saved(self, job: JobRef, *, timeout: float | None = None) -> None:
        """Wait until the master has the job; ``WaitTimeout`` after ``timeout`` seconds, ``NotFound`` as ``wait``."""
        job_ids, doubtful = watched([job])
        await self._open_waiter().until(job_ids, lambda state: state is not None, timeout, doubtful)

    async def wait(self, job: JobRef, *, timeout: float | None = None) -> JobState:
        """Wait until the job has ended, however; its final state.

        Raises:
            WaitTimeout: it has not within ``timeout`` seconds; it goes on.
            NotFound: an id that neither the master nor a bucket has; found out within a second, when every store answers. A
                receipt is never doubted: its job exists.
        """
        (state,) = (await self.wait_all([job], timeout=timeout)).values()
        return state

    async def wait_all(self, jobs: Iterable[JobRef], *, timeout: float | None = None) -> dict[UUID, JobState]:
        """Wait until all of the jobs have ended; their final states by id. Raises as ``wait``."""
        job_ids, doubtful = watched(jobs)
        states = await self._open_waiter().until(job_ids, is_final, timeout, doubtful)
        return {UUID(bytes=job_id): state for job_id, state in states.items() if state is not None}

    async def result(self, job: JobRef, *, timeout: float | None = None) -> Any:
        """Wait for the job's result, decoded by the handler's return annotation (plain JSON values when the handler
        is declared elsewhere).

        Raises:
            JobFailed: it ended as FAILED, CANCELLED or EXPIRED; ``info`` has the recorded error.
            WaitTimeout, NotFound: as ``wait``.
        """
        (value,) = await self.results([job], timeout=timeout)
        return value

    @overload
    async def results(
        self,
        jobs: Iterable[JobReceipt[R]],
        *,
        timeout: float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> list[R]: ...

    @overload
    async def results(
        self, jobs: Iterable[JobReceipt[R]], *, timeout: float | None = None, return_exceptions: Literal[True]
    ) -> list[R | JobMasterError]: ...

    @overload
    async def results(
        self, jobs: Iterable[JobRef], *, timeout: float | None = None, return_exceptions: bool = False
    ) -> list[Any]: ...

    async def results(
        self, jobs: Iterable[JobRef], *, timeout: float | None = None, return_exceptions: bool = False
    ) -> list[Any]:
        """Wait for the results of many jobs, in the order of ``jobs``. They are read 500 in one statement.

        Args:
            timeout: seconds for all of them together.
            return_exceptions: give the exception in place of the result of a job that has none (``JobFailed``, ``NotFound``;
                ``WaitTimeout`` for those that are not over), instead of raising the first.

        Raises:
            JobFailed: one of them ended without a result. Raised at once; the others go on.
            WaitTimeout, NotFound: as ``wait``.
        """
        job_ids, doubtful = watched(jobs)
        read = self._results.each_of if return_exceptions else self._results.all_of
        return await read(job_ids, doubtful, self._open_waiter(), timeout)

    async def as_ended(self, jobs: Iterable[J], *, timeout: float | None = None) -> AsyncIterator[tuple[J, JobState]]:
        """The jobs in the order in which they end, each as it was given, with its final state.

        ::

            async for receipt, state in cluster.as_ended(receipts, timeout=60):
                ...

        A loop that is left early stops watching when the iterator is closed (``contextlib.aclosing``) or collected.

        Raises:
            WaitTimeout: some have not ended within ``timeout`` seconds; they go on.
            NotFound: as ``wait``.
        """
        given = jobs if isinstance(jobs, IdList) else list(jobs)
        job_ids, doubtful = watched(given)
        by_id: dict[bytes, list[Any]] = {}
        for job_id, job in zip(job_ids, given, strict=True):
            by_id.setdefault(job_id, []).append(job)
        async with aclosing(self._open_waiter().each(job_ids, is_final, timeout, doubtful)) as batches:
            async for batch in batches:
                for job_id, state in batch.items():
                    if state is not None:
                        for job in by_id[job_id]:
                            yield job, state

    # ------------------------------------------------------------ reading and mending

    async def jobs(
        self,
        *,
        limit: int = LIMIT,
        after: JobRef | None = None,
        payload: bool = True,
        at_most_seconds: float | None = None,
        **filters: Unpack[JobFilters],
    ) -> JobList:
        """Jobs that have a row in the master, the newest first: one page of at most ``limit``.

        The next page is that with ``after=page[-1]``; a page with fewer than ``limit`` jobs is the last one. A job of
        level ``store`` gets its row when it ends, or ``thresholds.persist_within`` after its claim; ``get`` finds it before.

        Args:
            limit: 1 to 1000.
            after: the last job of the previous page.
            payload: with arguments and results (at most ``limits.args`` and ``limits.result`` for each job).
            at_most_seconds: end after about so long, with what was found so far; ``searched_to`` of the list says how far
                back it has looked, and is the ``after`` of the next page. Without it a list that is shorter than ``limit``
                is complete.
            filters: see ``JobFilters``: ``state``, ``handler``, ``lane``, ``priority``, ``tag``, ``metadata``, ``batch``,
                ``workflow``, ``schedule``, ``tenant``, ``error``, ``due_after``, ``due_before``, ``since``, ``until``. The
                states HELD, ASSIGNED and PROCESSING and the due times have indexes; ``batch``, ``workflow``, ``since`` and
                ``until`` bound what is read; with the others alone a list of rare jobs reads far back, a bounded number of
                rows in each statement.

        Raises:
            InputError: a filter that no job can fit.
            Unavailable: the master does not answer.
        """
        queries = self.master.queries
        chosen = await checked_filter(queries, self.handlers, filters, "jobs()")
        last = None if after is None else job_id_of(after)
        found = await list_jobs(
            queries, chosen, self._clock, limit=limit, after=last, payload=payload, seconds=at_most_seconds
        )
        found[:] = map(self._opened, found)
        return found

    async def count(self, *, at_most: int = COUNTED, **filters: Unpack[JobFilters]) -> JobCount:
        """How many jobs that have a row in the master fit; ``exact`` of the answer is False when there are more.

        Args:
            at_most: where the count ends: 1 to 1,000,000.
            filters: as of ``jobs``, at the same cost.

        Raises:
            InputError: a filter that no job can fit.
            Unavailable: the master does not answer.
        """
        queries = self.master.queries
        chosen = await checked_filter(queries, self.handlers, filters, "count()")
        return await count_jobs(queries, chosen, at_most=at_most)

    async def attempts(self, job: JobRef) -> list[Attempt]:
        """What the master has recorded about the runs of a job, oldest first, the line that ended it last. Empty for a job
        that has not run yet, or whose first run has not ended.

        Raises:
            NotFound: neither the master nor a bucket has the job.
        """
        job_id, bucket_id = ref_of(job)
        found = await self.master.queries.attempts(job_id)
        if not found:
            await self._job_lookup.get(job_id, bucket_id)
        return await self._opened_attempts(job_id, found)

    async def _opened_attempts(self, job_id: bytes, found: list[Attempt]) -> list[Attempt]:
        """The attempts with their errors opened, where they were sealed."""
        cipher = self._submit_checks.cipher
        if cipher is None or not any(each.error for each in found):
            return found
        handler = (await self.get(job_id)).handler
        return [
            each
            if each.error is None
            else msgspec.structs.replace(each, error=cipher.open_error(handler, job_id, each.error))
            for each in found
        ]

    async def cancel(self, job: JobRef, *, actor: str = "client") -> JobState:
        """Request the cancellation of a job; the state after it: CANCELLED, in flight with a flag, or its final state.

        A job that waits in a bucket answers ASSIGNED: its owner makes it CANCELLED as soon as it reads the request."""
        job_id, bucket_id = ref_of(job)
        return await self._job_lookup.cancel(job_id, bucket_id, actor=actor)

    async def change(self, job: JobRef, *, actor: str = "client", **options: Unpack[ChangeOptions]) -> JobChange:
        """Give a job that waits another due time, priority or lane, all in one write; ``effect`` of the answer is ``CHANGED``
        when that took effect before the job started, and names the reason otherwise.

        A job that lies in a bucket is taken out of it, and waits in the master again. One that an agent has in memory is not
        changed any more. The same change again is safe.

        Args:
            actor: stands in the operator log; 1 to 200 printable characters.
            options: see ``ChangeOptions``.

        Raises:
            InputError: no value, a wrong one (InvalidDueTime, UnknownLane), or a due time at which the job has expired;
                nothing was changed.
            NotFound: neither the master nor a bucket has the job.
            ConfigError: the job lies in a store that is missing in this configuration.
            Conflict: the job is on its way between the master and a bucket, and was not changed: call it again.
            OutcomeUnknown: an answer was lost: call it again.
            Unavailable: the master, or the store of its bucket, does not answer.
        """
        job_id, bucket_id = ref_of(job)
        new = check_change_options(options, self.settings.limits, self._clock.wall_us())
        return await self._changer().change(job_id, bucket_id, new, check_name(actor, "'actor'"))

    async def reschedule(
        self, job: JobRef, *, at: datetime | None = None, after: float | timedelta | None = None, actor: str = "client"
    ) -> JobChange:
        """``change`` of the due time: ``at`` an aware time, or ``after`` seconds from now. A time in the past means now."""
        return await self.change(job, actor=actor, **due_options(at, after))

    async def reprioritise(
        self, job: JobRef, priority: Priority | int | PriorityLabel, *, actor: str = "client"
    ) -> JobChange:
        """``change`` of the priority."""
        return await self.change(job, priority=priority, actor=actor)

    async def move(self, job: JobRef, lane: str, *, actor: str = "client") -> JobChange:
        """``change`` of the lane."""
        return await self.change(job, lane=lane, actor=actor)

    async def run_now(self, job: JobRef, *, actor: str = "client") -> JobChange:
        """``change`` of the due time to the present. A job that is overdue keeps its place among the others."""
        return await self.change(job, after=0.0, actor=actor)

    async def confirm_run(self, confirmation: str, result: object = None, *, actor: str = "client") -> None:
        """Confirm a run of a handler declared with ``confirm="explicit"`` from outside, while it runs or within its
        ``confirm_within`` after it has returned: the job has succeeded. Safe to repeat.

        Args:
            confirmation: the value of ``ctx.confirmation`` in that run.
            result: the job's result; the return annotation of a handler declared elsewhere is not checked.

        Raises:
            InputError, InvalidArguments: no confirmation, or a result that cannot be recorded; nothing was changed.
            Conflict: that run cannot be confirmed any more: too late, superseded, cancelled.
            NotFound: the master has no such job.
            OutcomeUnknown: call it again.
        """
        await confirm_run(self.master.requests, self.settings.limits, confirmation, result, actor=actor)
