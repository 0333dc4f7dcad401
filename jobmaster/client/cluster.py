"""The public face of a cluster for producers: submit, follow, look up, cancel. Made by ``jobmaster.connect``. Its further
calls are in ``jobmaster.client.calls``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Literal, TypeVar, Unpack, overload

from jobmaster.client.batches.batch import Batch
from jobmaster.client.batches.batches import Batches
from jobmaster.client.batches.options import BatchOptions, check_batch_options
from jobmaster.client.bulk import BulkSubmit, BulkSummary, Items
from jobmaster.client.bulk_operations.operations import BulkOperations
from jobmaster.client.calls.job_calls import JobCalls
from jobmaster.client.calls.lock_calls import LockCalls
from jobmaster.client.jobs.job_refs import JobRef
from jobmaster.client.jobs.retry_as_new_job import retry_job
from jobmaster.client.options import BulkOptions, SubmitOptions
from jobmaster.client.outbox.outbox import Outbox
from jobmaster.client.pauses.pausing import TIMEOUT_SECONDS, PauseSubject, Pausing, Until
from jobmaster.client.receipts import JobReceipt
from jobmaster.client.schedules.schedules import Schedules
from jobmaster.client.sql_submit import ParamStyle, styled
from jobmaster.client.submit_router import SubmitRequest
from jobmaster.client.submitter import PreparedSubmit
from jobmaster.client.transactions import ClusterTransaction
from jobmaster.client.workflows.workflows import Workflows
from jobmaster.clock import Clock
from jobmaster.handlers import Call, Handlers, check_name
from jobmaster.handlers.call import parts
from jobmaster.model import ids
from jobmaster.model.errors import OutcomeUnknown
from jobmaster.model.job import Durability, Receipt
from jobmaster.model.pause import Pause, PauseChange
from jobmaster.ports import ClientMaster, ClientStore, SubmitTraces
from jobmaster.rules.placement import Route
from jobmaster.settings.model import ClusterSettings

R = TypeVar("R")


class Cluster(JobCalls, LockCalls):
    """A producer's view of one cluster. Belongs to the event loop it is used in; ``SyncCluster`` is for plain code.

    ::

        async with jobmaster.connect(handlers=handlers) as cluster:
            receipt = await cluster.submit(call(resize, "a.png", width=400), priority="high")
            size = await receipt.result(timeout=30)
    """

    def __init__(
        self,
        settings: ClusterSettings,
        master: ClientMaster,
        stores: Mapping[str, ClientStore],
        *,
        handlers: Handlers | None = None,
        clock: Clock | None = None,
        on_close: Callable[[], Awaitable[None]] | None = None,
        traces: SubmitTraces | None = None,
    ) -> None:
        super().__init__(settings, master, stores, handlers=handlers, clock=clock, on_close=on_close, traces=traces)
        self.schedules = Schedules(self, master, settings, self._submit_checks)
        """Recurring jobs: ``await cluster.schedules.put("nightly", "0 3 * * *", call(report))``; see ``Schedules``."""
        self.workflows = Workflows(self, master.workflows, self._submit_checks, self._clock, settings.limits.args_bytes)
        """Steps that run after one another: ``await cluster.workflows.start("order", chain(...))``; see ``Workflows``."""
        self.batches = Batches(self)
        """Batches that there are: ``await cluster.batches.cancel(batch)``; see ``Batches``. ``batch`` opens one."""
        self.bulk = BulkOperations(self)
        """One change of every job that fits a filter: ``await cluster.bulk.start("retry", tag="x")``; see
        ``BulkOperations``."""
        self.outbox = Outbox(self)
        """Messages to other systems, in the caller's transaction; see ``Outbox``."""
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
            placed = await started.placement
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
        with self._publishing(None) as span:
            summary = await BulkSubmit(self._submitting(), self.settings, options).run(items, handler)
            if span is not None:
                span.counted(summary.submitted)
            return summary

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

    async def retry(
        self,
        job: JobRef,
        args: Mapping[str, object] | None = None,
        *,
        actor: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> JobReceipt[Any]:
        """Run a FAILED, CANCELLED or EXPIRED job again, as a new job; a final state never changes.

        Asked twice, it is one new job (the receipt says ``duplicate``). When that one has ended without success meanwhile,
        it is retried instead. The new job has the old one's handler, arguments, priority, lane, tags, metadata, time-out,
        attempts and delivery, and the metadata ``retry_of``; it is due now.

        Args:
            args: other arguments.
            actor: stands in the operator log, which the user of the master must be allowed to write; 1 to 200 printable
                characters. ``None``: a program retries its own job, and no line is written.
            options: other options; not ``idempotency_key``, ``job_id`` and ``connection``.

        Raises:
            Conflict: the job has not ended, or succeeded; or it has been retried with other arguments.
            NotFound: neither the master nor a bucket has it.
            InputError and others: as ``submit``. After any error the same retry is safe, and writes the line that is missing.
        """
        retried_by = None if actor is None else check_name(actor, "'actor'")
        retried, receipt = await retry_job(
            await self._get_to_submit(job), self._get_to_submit, self.submit, args, options
        )
        if retried_by is not None:
            note = self.master.requests.note_once
            await note(retried_by, "job retry", str(retried.id), {"job": str(receipt.id)})
        return receipt

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
