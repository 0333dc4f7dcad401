"""The public face of a cluster for producers: submit, follow, look up, cancel. Made by ``jobmaster.connect``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload
from uuid import UUID

import msgspec

from jobmaster.client.batches.batch import Batch
from jobmaster.client.batches.batches import Batches
from jobmaster.client.batches.options import BatchOptions, check_batch_options
from jobmaster.client.breakers.breakers import Breakers
from jobmaster.client.bucket_directory import BucketDirectory
from jobmaster.client.bulk import BulkSubmit, BulkSummary, IdList, Items
from jobmaster.client.bulk_operations.operations import BulkOperations
from jobmaster.client.events.event_readers import EventReaders
from jobmaster.client.handler_lookup import HandlerLookup
from jobmaster.client.inspect.inspection import Inspection
from jobmaster.client.jobs.changes import ChangeOptions, JobChanger, check_change_options, due_options
from jobmaster.client.jobs.existence import ExistenceCheck
from jobmaster.client.jobs.job_filters import JobFilters, checked_filter
from jobmaster.client.jobs.job_logs import JobLogReader
from jobmaster.client.jobs.job_refs import JobRef, job_id_of, ref_of, watched
from jobmaster.client.jobs.listing import COUNTED, LIMIT, JobCount, count_jobs, list_jobs
from jobmaster.client.jobs.result_waiter import ResultWaiter
from jobmaster.client.jobs.results import Results, is_final
from jobmaster.client.jobs.retry_as_new_job import retry_job
from jobmaster.client.limits.limits import Limits
from jobmaster.client.locks.held_lock import HeldLock
from jobmaster.client.locks.lock import Lock
from jobmaster.client.locks.once import run_once
from jobmaster.client.locks.options import (
    LISTED_MAX,
    LOCK_CHARS_MAX,
    TTL_SECONDS,
    LockOptions,
    Seconds,
    check_lock_name,
    lock_options,
    wait_seconds,
)
from jobmaster.client.lookup import JobLookup, confirm_run
from jobmaster.client.operate.operating import Operating
from jobmaster.client.options import BulkOptions, SubmitOptions
from jobmaster.client.outbox.outbox import Outbox
from jobmaster.client.pauses.pausing import TIMEOUT_SECONDS, PauseSubject, Pausing, Until
from jobmaster.client.receipts import JobReceipt
from jobmaster.client.schedules.schedules import Schedules
from jobmaster.client.signals.signals import Signals
from jobmaster.client.sql_submit import ParamStyle, styled
from jobmaster.client.store_handle import store_handles
from jobmaster.client.submit_router import SubmitRequest, SubmitRouter
from jobmaster.client.submitter import PreparedSubmit, SubmitChecks, Submitter
from jobmaster.client.tenants.tenants import Tenants
from jobmaster.client.transactions import ClusterTransaction
from jobmaster.client.workflows.workflows import Workflows
from jobmaster.clock import Clock, SystemClock
from jobmaster.encryption import opened_view
from jobmaster.handlers import Call, Handlers, check_name
from jobmaster.handlers.call import parts
from jobmaster.handlers.once import once_action
from jobmaster.model import ids
from jobmaster.model.errors import JobMasterError, OutcomeUnknown
from jobmaster.model.job import Durability, JobState, Priority, PriorityLabel, Receipt
from jobmaster.model.job_change import JobChange
from jobmaster.model.job_view import Attempt, JobView
from jobmaster.model.lock import LockView, OnceView
from jobmaster.model.pause import Pause, PauseChange
from jobmaster.model.schedule_view import ScheduleView
from jobmaster.ports import ClientMaster, ClientStore
from jobmaster.rules.placement import Route
from jobmaster.settings.model import ClusterSettings
from jobmaster.telemetry import Telemetry

R = TypeVar("R")
J = TypeVar("J", bound=JobRef)
V = TypeVar("V", JobView, ScheduleView)


class Cluster:
    """A producer's view of one cluster. Belongs to the event loop it is used in; ``SyncCluster`` is for plain code.

    ::

        async with jobmaster.connect(handlers=handlers) as cluster:
            receipt = await cluster.submit(call(resize, "a.png", width=400), priority="high")
            size = await receipt.result(timeout=30)
    """

    _submitter: Submitter | None = None
    _waiter: ResultWaiter | None = None
    _closed = False

    def __init__(
        self,
        settings: ClusterSettings,
        master: ClientMaster,
        stores: Mapping[str, ClientStore],
        *,
        handlers: Handlers | None = None,
        clock: Clock | None = None,
        on_close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.settings = settings
        self.handlers = handlers if handlers is not None else Handlers()
        self.job = self.handlers.job
        """Decorator that declares a handler: ``@cluster.job(priority="high")``; see ``Handlers.job``."""
        self.master = master
        self.stores = stores
        self.telemetry = Telemetry()
        """What this producer has handed in; ``telemetry.exposition()`` is what a scrape of its process should show."""
        self._clock = clock or SystemClock()
        self._on_close = on_close
        self._store_handles = store_handles(settings, stores, self._clock)
        self._buckets = BucketDirectory(
            master.queries, self._store_handles, self._clock, settings.leases.bucket_map_seconds
        )
        self._job_lookup = JobLookup(master, stores, self._buckets)
        handler_lookup = HandlerLookup(self.handlers, master.queries, settings.jobs, self._clock)
        self._submit_checks = SubmitChecks(settings, handler_lookup, self._clock)
        self._results = Results(master.queries, self.handlers, self._clock, self._submit_checks.cipher)
        self.limits = Limits(master.limits)
        """How many jobs may run at once: ``await cluster.limits.set("stripe", 50)``; see ``Limits``."""
        self.tenants = Tenants(master.queries, settings.tenants.weights)
        """What waits and runs for each tenant: ``await cluster.tenants.list()``; see ``Tenants``."""
        self.schedules = Schedules(self, master, settings, self._submit_checks)
        """Recurring jobs: ``await cluster.schedules.put("nightly", "0 3 * * *", call(report))``; see ``Schedules``."""
        self.operate = Operating(master, stores, self._refuse_closed)
        """Agents and buckets: ``await cluster.operate.drain(agent)``; see ``Operating``."""
        self.breakers = Breakers(master.breakers, self._refuse_closed)
        """Circuit breakers: ``await cluster.breakers.open("stripe")``; see ``Breakers``."""
        self.signals = Signals(master.signals, settings.limits, self._refuse_closed)
        """Signals: ``await cluster.signals.send("order:17", {"paid": True})``; see ``Signals``."""
        self.workflows = Workflows(self, master.workflows, self._submit_checks, self._clock, settings.limits.args_bytes)
        """Steps that run after one another: ``await cluster.workflows.start("order", chain(...))``; see ``Workflows``."""
        self.batches = Batches(self)
        """Batches that there are: ``await cluster.batches.cancel(batch)``; see ``Batches``. ``batch`` opens one."""
        self.bulk = BulkOperations(self)
        """One change of every job that fits a filter: ``await cluster.bulk.start("retry", tag="x")``; see
        ``BulkOperations``."""
        self.outbox = Outbox(self)
        """Messages to other systems, in the caller's transaction; see ``Outbox``."""
        self.logs = JobLogReader(master.job_logs, self._job_lookup).logs
        """Lines that the runs of a job have written: ``await cluster.logs(job)``; see ``JobLogReader``."""
        readers = EventReaders(master, stores, self.handlers, self._clock, self._refuse_closed)
        self.listen = readers.listen
        """Events as they happen: ``async for event in cluster.listen(tag="orders")``; see ``EventReaders``."""
        self.events = readers.events
        """Events as recorded: ``async for event in cluster.events(after=cursor)``; see ``EventReaders``."""
        self.inspect = Inspection(settings, master, stores, self._job_lookup, self.handlers, self._refuse_closed)
        """What operators see: ``await cluster.inspect.overview()``; see ``Inspection``."""
        self._pausing = Pausing(settings, master, self.handlers, self.schedules, self._clock)

    # ------------------------------------------------------------ submitting

    @overload
    async def submit(self, call: Call[R], /, **options: Unpack[SubmitOptions]) -> JobReceipt[R]: ...

    @overload
    async def submit(
        self,
        handler: Callable[..., Coroutine[Any, Any, R]],
        args: Mapping[str, object] | None = None,
        /,
        **options: Unpack[SubmitOptions],
    ) -> JobReceipt[R]: ...

    @overload
    async def submit(
        self,
        handler: Callable[..., R],
        args: Mapping[str, object] | None = None,
        /,
        **options: Unpack[SubmitOptions],
    ) -> JobReceipt[R]: ...

    @overload
    async def submit(
        self, handler: str, args: Mapping[str, object] | None = None, /, **options: Unpack[SubmitOptions]
    ) -> JobReceipt[Any]: ...

    async def submit(
        self,
        handler: Call[Any] | Callable[..., Any] | str,
        args: Mapping[str, object] | None = None,
        /,
        **options: Unpack[SubmitOptions],
    ) -> JobReceipt[Any]:
        """Hand in one job; returns when it is as safe as its durability level requires.

        Args:
            handler: the call to be made, ``call(resize, "a.png")``; or the declared function or its name, and ``args``.
            args: the handler's arguments by name; checked against its signature here and again before it runs.
            options: see ``SubmitOptions``.

        Raises:
            InputError: it could never work (unknown handler, arguments, options, lane); nothing was stored.
            BucketsFull, DurabilityRefused, StoreRefused, Unserved: the cluster refuses it; nothing was stored.
            Conflict: the idempotency key or the id belongs to another payload; ``NotUnique``: another job holds the unique
                key, and the submit is to be rejected then.
            OutcomeUnknown: an answer was lost, so it may be stored, whatever failed after that. Send the same job again
                with ``job_id=error.job_ids[0]``, or with its idempotency key.
            Unavailable: neither a store nor the master could be reached; this call has stored nothing.
        """
        submitter = self._submitter or self._open_submitter()
        if type(handler) is Call:  # isinstance takes four times as long for a function, on the path of every submit
            handler, args = (handler.handler, handler.arguments) if args is None else parts(handler, args)
        if options and (options.get("on_success") is not None or options.get("on_failure") is not None):
            job_id = await self.workflows.start_with_callbacks(Call(handler, dict(args or {})), options)
            return JobReceipt(self, job_id, Durability.MASTER)
        if options or (started := submitter.start(handler, args)) is None:
            receipt = await submitter.submit(handler, args, options)
            return self._receipt(receipt)
        try:
            placed = await started.future
            if placed.level is None:
                placed = await submitter.fall_back(started, placed)
        except OutcomeUnknown as error:
            raise OutcomeUnknown(error.message, id_bytes=[started.job_id]) from error
        unserved = placed.bucket_id is None and await submitter.is_unserved(started)
        return JobReceipt(self, started.job_id, placed.level or Durability.MASTER, placed.bucket_id, False, unserved)

    async def submit_many(
        self, items: Items, /, handler: Callable[..., Any] | str | None = None, **options: Unpack[BulkOptions]
    ) -> BulkSummary:
        """Hand in many jobs, read from ``items`` only as fast as the stores take them.

        Args:
            items: (async) iterable of calls (``call(resize, "a.png")``), of ``(handler, args)`` pairs, or of ``args``
                mappings when ``handler`` is given.
            handler: the handler of every item.
            options: see ``BulkOptions``; they apply to every item.

        Raises:
            BulkFailed: it stopped; names the jobs that were acknowledged or are unknown, and how many were not stored.
        """
        return await BulkSubmit(self._submitting(), self.settings, options).run(items, handler)

    def batch(self, name: str, /, **options: Unpack[BatchOptions]) -> Batch:
        """A batch of jobs, for ``async with``: they are counted as one, and callbacks follow when all of them have ended.

        Args:
            name: 1 to 200 printable characters; several batches may have it.
            options: see ``BatchOptions``.

        Raises:
            InputError: an option that cannot be meant; nothing was stored. For the errors of ``async with`` see ``Batch``.
        """
        self._refuse_closed()
        return Batch(self, self.batches, check_batch_options(name, options))

    def transaction(self, connection: Any) -> ClusterTransaction:
        """A transaction on the caller's own asyncpg connection to the master's database, for ``tx.submit``."""
        return ClusterTransaction(self, connection)

    async def _submit_within(
        self, connection: Any, handler: Call[Any] | Callable[..., Any] | str, args: Any, options: SubmitOptions
    ) -> tuple[JobReceipt[Any], SubmitRequest]:
        """One job inside the caller's transaction, and the request that it became."""
        if isinstance(handler, Call):
            handler, args = parts(handler, args)
        submitter = self._submitter or self._open_submitter()
        receipt, request = await submitter.submit_within(connection, handler, args, options)
        return self._receipt(receipt), request

    @overload
    def statement(
        self,
        handler: Call[Any] | Callable[..., Any] | str,
        args: Mapping[str, object] | None = None,
        /,
        *,
        paramstyle: Literal["format", "numeric"] = "format",
        **options: Unpack[SubmitOptions],
    ) -> tuple[str, tuple[str, str, str]]: ...

    @overload
    def statement(
        self,
        handler: Call[Any] | Callable[..., Any] | str,
        args: Mapping[str, object] | None = None,
        /,
        *,
        paramstyle: Literal["named"],
        **options: Unpack[SubmitOptions],
    ) -> tuple[str, dict[str, str]]: ...

    def statement(
        self,
        handler: Call[Any] | Callable[..., Any] | str,
        args: Mapping[str, object] | None = None,
        /,
        *,
        paramstyle: ParamStyle = "format",
        **options: Unpack[SubmitOptions],
    ) -> tuple[str, tuple[str, str, str] | dict[str, str]]:
        """A submit as SQL and its parameters, to be run in a transaction on the master's database; its one column is the
        job's id (a UUID).

        ::

            cursor.execute(*cluster.statement(call(resize, "a.png"), priority="high"))

        Calls no server, and may be called in any thread. A handler that is declared here is checked here; any other is
        checked by the database.

        Args:
            handler: the call to be made; or the declared function or its name, and ``args``.
            paramstyle: ``format`` for ``%s`` (psycopg, Django), ``numeric`` for ``$1`` (asyncpg), ``named`` for ``:handler``
                (SQLAlchemy).
            options: as of ``submit``, without those about stores and connections.

        Raises:
            InputError: it could never work.
        """
        if isinstance(handler, Call):
            handler, args = parts(handler, args)
        self._refuse_closed()
        values = self._submit_checks.statement(handler, args, options)
        text = styled(self.master.intake.submit_sql, paramstyle)
        return text, (values._asdict() if paramstyle == "named" else (values.handler, values.args, values.options))

    async def _prepare_within(
        self, handler: Call[Any] | Callable[..., Any] | str, args: Any, options: SubmitOptions
    ) -> tuple[str, PreparedSubmit]:
        """One job for the transaction of a driver that blocks: the statement, and the submit with its values."""
        if isinstance(handler, Call):
            handler, args = parts(handler, args)
        submitter = self._submitter or self._open_submitter()
        return self.master.intake.submit_sql, await submitter.prepare_within(handler, args, options)

    async def _accept_within(self, prepared: PreparedSubmit, job_id: str) -> JobReceipt[Any]:
        """The receipt of a prepared submit that the driver has run."""
        submitter = self._submitter or self._open_submitter()
        return self._receipt(submitter.accepted_within(prepared, ids.parse(job_id)))

    def _receipt(self, receipt: Receipt) -> JobReceipt[Any]:
        return JobReceipt(self, *receipt)

    def _route_of(self, request: SubmitRequest) -> Route:
        """The way that the request would take as a plain submit."""
        return self._router().route_of(request.job.due_us, Durability.STORE)

    async def _hint_after_commit(self, lane: str, priority: int) -> None:
        """After a caller's commit: notify one agent of the lane and priority that HELD jobs are due."""
        await self._buckets.fresh()
        handles = self._buckets.handles(lane, priority)
        if handles:
            handle = min(handles, key=lambda one: one.depth)
            await self.stores[handle.store_handle.name].hint(handle.id)

    # ------------------------------------------------------------ following

    async def get(self, job: JobRef) -> JobView:
        """The job as it is now; ``NotFound`` when neither the master nor a bucket has it."""
        job_id, bucket_id = ref_of(job)
        return self._opened(await self._job_lookup.get(job_id, bucket_id))

    def _opened(self, view: JobView) -> JobView:
        """The job with its payload opened, where it was sealed."""
        return opened_view(self._submit_checks.cipher, view)

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
        **filters: Unpack[JobFilters],
    ) -> list[JobView]:
        """Jobs that have a row in the master, the newest first: one page of at most ``limit``.

        The next page is that with ``after=page[-1]``; a page with fewer than ``limit`` jobs is the last one. A job of
        level ``store`` gets its row when it ends, or ``thresholds.persist_within`` after its claim; ``get`` finds it before.

        Args:
            limit: 1 to 1000.
            after: the last job of the previous page.
            payload: with arguments and results (at most ``limits.args`` and ``limits.result`` for each job).
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
        return [*map(self._opened, await list_jobs(queries, chosen, limit=limit, after=last, payload=payload))]

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

    async def retry(
        self, job: JobRef, args: Mapping[str, object] | None = None, **options: Unpack[SubmitOptions]
    ) -> JobReceipt[Any]:
        """Run a FAILED, CANCELLED or EXPIRED job again, as a new job; a final state never changes.

        Asked twice, it is one new job (the receipt says ``duplicate``). When that one has ended without success meanwhile,
        it is retried instead. The new job has the old one's handler, arguments, priority, lane, tags, metadata, time-out,
        attempts and delivery, and the metadata ``retry_of``; it is due now.

        Args:
            args: other arguments.
            options: other options; not ``idempotency_key``, ``job_id`` and ``connection``.

        Raises:
            Conflict: the job has not ended, or succeeded; or it has been retried with other arguments.
            NotFound: neither the master nor a bucket has it.
            InputError and others: as ``submit``.
        """
        return await retry_job(await self.get(job), self.get, self.submit, args, options)

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

    # ------------------------------------------------------------ pauses

    async def pause(
        self,
        *,
        until: Until | None = None,
        reason: str = "",
        timeout: float | None = TIMEOUT_SECONDS,
        force: bool = False,
        actor: str = "client",
        **subject: Unpack[PauseSubject],
    ) -> PauseChange:
        """Pause a handler, a lane, a priority or a tag: no such job starts, in any agent, until it is resumed. What runs may
        end; jobs are still accepted, and wait. Returns when every living agent has confirmed it.

        A pause holds for agents and buckets that come later, and no rescue and no restart ends it. A second pause of the same
        thing replaces its end, its reason and its actor.

        Args:
            until: its end: an aware time, or a ``timedelta`` or seconds from now by the master's clock; ``None``: ``resume``.
            reason: for the list of the pauses and the operator's log; at most 1000 characters.
            timeout: seconds to wait for the agents; 0: do not wait, ``None``: for as long as it takes.
            force: also a handler that no agent has published, or a lane that none serves.
            actor: for the list of the pauses and the operator's log.
            subject: exactly one of ``handler`` (the function or the name), ``lane``, ``priority``, ``tag``, and ``schedule``:
                the same as ``schedules.pause``.

        Raises:
            UnknownHandler, UnknownLane: there is none, and not ``force``; nothing was stored.
            InputError: no subject or several, a value that no job can have, an end that is not in the future.
            WaitTimeout: the pause is stored, and some agents have not confirmed it; they are named.
        """
        return await self._pausing.pause(subject, until, reason, timeout, actor, force=force)

    async def resume(
        self,
        *,
        reason: str = "",
        timeout: float | None = TIMEOUT_SECONDS,
        actor: str = "client",
        **subject: Unpack[PauseSubject],
    ) -> PauseChange:
        """End a pause: jobs that waited for it start. ``changed`` of the answer is False when there was no such pause.

        A job that is covered by another pause, of its lane for example, goes on waiting. Arguments and errors as ``pause``.
        """
        return await self._pausing.resume(subject, reason, timeout, actor)

    async def pauses(self) -> list[Pause]:
        """The pauses in force, by kind and value."""
        return list((await self.master.pauses.in_force()).pauses)

    # ------------------------------------------------------------ locks

    def lock(
        self, name: str, /, *, ttl: Seconds = TTL_SECONDS, wait: Seconds | None = 0.0, label: str | None = None
    ) -> Lock:
        """A named lock of the whole cluster, for ``async with``: at most one program holds it.

        Args:
            name: 1 to 200 printable characters; not beginning with ``once/``.
            ttl: 1 s to a day: how long a dead holder blocks the others. A living one renews the lock every third of it.
            wait: seconds to wait for another holder; 0: fail at once; ``None``: no limit. There is no queue: the first
                attempt after the release gets the lock, and attempts are up to 1 s apart.
            label: what the lock is held for, beside host and process; at most 100 characters.

        Raises:
            InputError: one of these cannot be meant. For the errors of ``async with`` see ``Lock``.
        """
        return Lock(self._held_lock(lock_options(name, ttl, wait, label)))

    def _held_lock(self, options: LockOptions) -> HeldLock:
        self._refuse_closed()
        return HeldLock(self.master.locks, options, self._clock)

    async def locks(self, name: str | None = None) -> list[LockView]:
        """Locks that have a holder now, by name; at most 1000. With ``name``: that one, if it has a holder."""
        return await self.master.locks.held(LISTED_MAX, None if name is None else check_lock_name(name))

    async def release_lock(self, name: str, *, actor: str = "client") -> LockView | None:
        """Take a lock from its holder, with a line in the operator's log. The holder notices it with its next renewal,
        within a third of the ttl; until then both may work. The lock as it was; ``None``: it was free."""
        return await self.master.locks.revoke(check_lock_name(name), check_name(actor, "'actor'", LOCK_CHARS_MAX))

    async def once(self, name: str, version: str, action: Callable[[], Any], /, *, wait: Seconds | None = None) -> bool:
        """Run ``action()`` once per cluster and version; wait while another program runs it. True when it ran here.

        The action of a process that dies, or loses the lock of the action, runs again elsewhere: it must be repeatable.

        Args:
            name: 1 to 90 printable characters.
            version: the same.
            action: a coroutine function, or a plain one, which runs in a thread.
            wait: seconds to wait for the other program; ``None``: no limit.

        Raises:
            LockHeld: another program runs it, and the time to wait is over.
            LockLost: its lock was lost while it ran here; it has not been recorded.
            Exception: what the action raised; it has not been recorded.
        """
        self._refuse_closed()
        limit = wait_seconds(wait)
        return await run_once(self.master.locks, self._clock, once_action(name, version, action), wait_seconds=limit)

    async def once_actions(self) -> list[OnceView]:
        """Actions that run once: those that run, then failed ones, then done ones; of each the latest first. At most 1000."""
        return await self.master.locks.actions(LISTED_MAX)

    # ------------------------------------------------------------ opening and closing

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish the calls under way and give every connection back; further submits are refused, and so are those that
        still wait for the first list of the buckets."""
        if self._closed:
            return
        self._closed = True
        await self._buckets.close()
        submitter, self._submitter = self._submitter, None
        if submitter is not None:
            await submitter.router.close()
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            await waiter.close()
        await asyncio.gather(*(store_handle.close() for store_handle in self._store_handles.values()))
        if self._on_close is not None:
            await self._on_close()

    def _router(self) -> SubmitRouter:
        return self._submitting().router

    def _submitting(self) -> Submitter:
        return self._submitter or self._open_submitter()

    def _changer(self) -> JobChanger:
        return JobChanger(self.master, self.stores, self._buckets, self._job_lookup, self._router(), self._clock)

    def _open_submitter(self) -> Submitter:
        """Made at the first use, for it belongs to the running loop."""
        self._refuse_closed()
        parts = (self.settings, self.master, self.stores, self._buckets, self._clock, self.telemetry, self._changer)
        router = SubmitRouter(*parts)
        self._submitter = Submitter(self.settings, self._submit_checks.handler_lookup, router, self._clock)
        return self._submitter

    def _open_waiter(self) -> ResultWaiter:
        self._refuse_closed()
        if self._waiter is None:
            existence = ExistenceCheck(self.master.queries, self.stores, self._buckets)
            self._waiter = ResultWaiter(self.master.queries, self.stores, self._clock, existence)
        return self._waiter

    def _refuse_closed(self) -> None:
        if self._closed:
            raise JobMasterError("the cluster is closed", hint="open a new one")
