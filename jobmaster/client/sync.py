"""The cluster without ``await``: for scripts, threads, Django and Flask.

One event loop in a background thread does the work; any number of threads may call at once, and their submits coalesce like
those of coroutines. The thread starts with the first call, so a cluster may be made before a fork (``gunicorn --preload``)
and used after it. One that was used before has no thread in the child and raises an error there.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import threading
import weakref
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, Unpack, cast, overload
from uuid import UUID

from jobmaster.client.batches.options import BatchOptions
from jobmaster.client.batches.sync import SyncBatch, SyncBatches
from jobmaster.client.breakers.sync import SyncBreakers
from jobmaster.client.bulk import BulkSummary, IdList
from jobmaster.client.bulk_operations.sync import SyncBulkOperations
from jobmaster.client.caller_connections import caller_connection, run
from jobmaster.client.cluster import Cluster
from jobmaster.client.events.sync import SyncEventReaders
from jobmaster.client.inspect.sync import SyncInspection
from jobmaster.client.jobs.changes import ChangeOptions
from jobmaster.client.jobs.job_filters import JobFilters
from jobmaster.client.jobs.job_logs import LIMIT as LOG_LIMIT
from jobmaster.client.jobs.job_refs import JobRef, job_id_of
from jobmaster.client.jobs.listing import COUNTED, LIMIT, JobCount, JobList
from jobmaster.client.limits.sync import SyncLimits
from jobmaster.client.locks.options import TTL_SECONDS, Seconds, lock_options
from jobmaster.client.locks.sync_lock import SyncLock
from jobmaster.client.operate.sync import SyncOperating
from jobmaster.client.options import BulkOptions, SubmitOptions
from jobmaster.client.outbox.outbox import SyncOutbox
from jobmaster.client.pauses.pausing import TIMEOUT_SECONDS, PauseSubject, Until
from jobmaster.client.receipts import RECEIPT_RESPONSE, JobReceipt
from jobmaster.client.schedules.sync import SyncSchedules
from jobmaster.client.signals.sync import SyncSignals
from jobmaster.client.tenants.sync import SyncTenants
from jobmaster.client.workflows.sync import SyncWorkflows
from jobmaster.handlers import Call, Handlers
from jobmaster.model.errors import InputError, JobMasterError
from jobmaster.model.flow.lock import LockView, OnceView
from jobmaster.model.flow.uniqueness import SubmitAnswer
from jobmaster.model.inspection.schedule_view import ScheduleView
from jobmaster.model.job import Durability, JobState, Priority, PriorityLabel
from jobmaster.model.job_change import JobChange
from jobmaster.model.job_log import LogLine
from jobmaster.model.job_view import Attempt, JobView
from jobmaster.model.pause import Pause, PauseChange
from jobmaster.model.response import response_schema

R = TypeVar("R")
T = TypeVar("T")
J = TypeVar("J", bound="SyncJobRef")
V = TypeVar("V", JobView, ScheduleView)

_log = logging.getLogger(__name__)

_START_SECONDS = 60.0
_CLOSE_SECONDS = 30.0


class SyncReceipt(Generic[R]):
    """``JobReceipt`` without ``await``."""

    __slots__ = ("_cluster", "_receipt")

    def __init__(self, cluster: SyncCluster, receipt: JobReceipt[R]) -> None:
        self._cluster = cluster
        self._receipt = receipt

    def __str__(self) -> str:
        return str(self._receipt)

    def __repr__(self) -> str:
        return repr(self._receipt)

    @property
    def id(self) -> UUID:
        return self._receipt.id

    @property
    def id_bytes(self) -> bytes:
        return self._receipt.id_bytes

    @property
    def level(self) -> Durability:
        return self._receipt.level

    @property
    def bucket_id(self) -> bytes | None:
        return self._receipt.bucket_id

    @property
    def duplicate(self) -> bool:
        return self._receipt.duplicate

    @property
    def unserved(self) -> bool:
        return self._receipt.unserved

    @property
    def answer(self) -> SubmitAnswer:
        return self._receipt.answer

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return response_schema(cls, RECEIPT_RESPONSE, handler)

    def wait_saved(self, timeout: float | None = None) -> None:
        self._cluster.wait_saved(self._receipt, timeout=timeout)

    def wait(self, timeout: float | None = None) -> JobState:
        return self._cluster.wait(self._receipt, timeout=timeout)

    def result(self, timeout: float | None = None) -> R:
        value: R = self._cluster.result(self._receipt, timeout=timeout)
        return value

    def get(self) -> JobView:
        return self._cluster.get(self._receipt)

    def cancel(self) -> JobState:
        return self._cluster.cancel(self._receipt)

    def reschedule(self, *, at: datetime | None = None, after: float | timedelta | None = None) -> JobChange:
        return self._cluster.reschedule(self._receipt, at=at, after=after)

    def reprioritise(self, priority: Priority | int | PriorityLabel) -> JobChange:
        return self._cluster.reprioritise(self._receipt, priority)

    def move(self, lane: str) -> JobChange:
        return self._cluster.move(self._receipt, lane)

    def run_now(self) -> JobChange:
        return self._cluster.run_now(self._receipt)


SyncJobRef = JobRef | SyncReceipt[Any]


class SyncCluster:
    """A cluster for plain code.

    Args:
        opener: makes the cluster, inside the background loop; ``jobmaster.wiring`` has a shorter way.
        handlers: the registry for ``@cluster.job``; the same that the opener gives to the cluster.
    """

    def __init__(self, opener: Callable[[], Awaitable[Cluster]], *, handlers: Handlers | None = None) -> None:
        self._opener = opener
        self.handlers = handlers if handlers is not None else Handlers()
        self.job = self.handlers.job
        self.limits = SyncLimits(self)
        """How many jobs may run at once: ``cluster.limits.set("stripe", 50)``; see ``SyncLimits``."""
        self.tenants = SyncTenants(self)
        """What waits and runs for each tenant: ``cluster.tenants.list()``; see ``SyncTenants``."""
        self.bulk = SyncBulkOperations(self)
        """One change of every job that fits a filter: ``cluster.bulk.start("retry", tag="x")``; see
        ``SyncBulkOperations``."""
        self.batches = SyncBatches(self)
        """Batches that there are: ``cluster.batches.cancel(batch)``; see ``SyncBatches``. ``batch`` opens one."""
        self.schedules = SyncSchedules(self)
        """Recurring jobs: ``cluster.schedules.put("nightly", "0 3 * * *", call(report))``; see ``SyncSchedules``."""
        self.outbox = SyncOutbox(self)
        """Messages to other systems, in the caller's transaction; see ``SyncOutbox``."""
        self.operate = SyncOperating(self)
        """Agents and buckets: ``cluster.operate.drain(agent)``; see ``SyncOperating``."""
        self.breakers = SyncBreakers(self)
        """Circuit breakers: ``cluster.breakers.open("stripe")``; see ``SyncBreakers``."""
        self.signals = SyncSignals(self)
        """Signals: ``cluster.signals.send("order:17", {"paid": True})``; see ``SyncSignals``."""
        self.workflows = SyncWorkflows(self)
        """Steps that run after one another: ``cluster.workflows.start("order", chain(...))``; see ``SyncWorkflows``."""
        readers = SyncEventReaders(self)
        self.listen = readers.listen
        """Events as they happen: ``with cluster.listen(tag="orders") as events``; see ``SyncEventReaders``."""
        self.events = readers.events
        """Events as recorded: ``for event in cluster.events(after=cursor)``; see ``SyncEventReaders``."""
        self.inspect = SyncInspection(self)
        """What operators see: ``cluster.inspect.overview()``; see ``SyncInspection``."""
        self._pid: int | None = None
        """The process of the thread; one that was forked off before there was a thread may start its own."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._cluster: Cluster | None = None
        self._closed = False

    # ------------------------------------------------------------ submitting

    @overload
    def submit(self, call: Call[R], /, **options: Unpack[SubmitOptions]) -> SyncReceipt[R]: ...

    @overload
    def submit(
        self,
        handler: Callable[..., Coroutine[Any, Any, R]],
        args: Mapping[str, object] | None = None,
        /,
        **options: Unpack[SubmitOptions],
    ) -> SyncReceipt[R]: ...

    @overload
    def submit(
        self, handler: Callable[..., R], args: Mapping[str, object] | None = None, /, **options: Unpack[SubmitOptions]
    ) -> SyncReceipt[R]: ...

    @overload
    def submit(
        self, handler: str, args: Mapping[str, object] | None = None, /, **options: Unpack[SubmitOptions]
    ) -> SyncReceipt[Any]: ...

    def submit(
        self,
        handler: Call[Any] | Callable[..., Any] | str,
        args: Mapping[str, object] | None = None,
        /,
        **options: Unpack[SubmitOptions],
    ) -> SyncReceipt[Any]:
        """See ``Cluster.submit``. With ``connection=`` (psycopg, psycopg2, SQLAlchemy, Django) the job joins the caller's
        open transaction, and the statement runs in the calling thread."""
        plain: Any = handler
        if options.get("connection") is not None:
            return self._submit_within(plain, args, options)
        return SyncReceipt(self, self._call(lambda cluster: cluster.submit(plain, args, **options)))

    def _submit_within(self, handler: Any, args: Any, options: SubmitOptions) -> SyncReceipt[Any]:
        """Checked in the background, run in the caller's transaction by the caller's thread."""
        caller = caller_connection(options["connection"])
        if caller.awaits:
            raise InputError(
                f"the connection of {caller.driver.value} given with connection= is async",
                hint="give one that blocks, or submit with the async Cluster: jobmaster.connect()",
            )
        text, prepared = self._call(lambda cluster: cluster._prepare_within(handler, args, options))
        job_id = run(caller, text, prepared.call)
        return SyncReceipt(self, self._call(lambda cluster: cluster._accept_within(prepared, job_id)))

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
        paramstyle: Any = "format",
        **options: Unpack[SubmitOptions],
    ) -> Any:
        """See ``Cluster.statement``."""

        async def made(cluster: Cluster) -> Any:
            return cluster.statement(handler, args, paramstyle=paramstyle, **options)

        return self._call(made)

    def submit_many(
        self, items: Iterable[Any], /, handler: Callable[..., Any] | str | None = None, **options: Unpack[BulkOptions]
    ) -> BulkSummary:
        """See ``Cluster.submit_many``. The iterable is read in the background thread."""
        return self._call(lambda cluster: cluster.submit_many(items, handler, **options))

    # ------------------------------------------------------------ following

    def get(self, job: SyncJobRef) -> JobView:
        """See ``Cluster.get``."""
        return self._call(lambda cluster: cluster.get(_plain(job)))

    def redacted(self, view: V) -> V:
        """See ``Cluster.redacted``."""
        return self._call(lambda cluster: cluster.redacted(view))

    def state(self, job: SyncJobRef) -> JobState:
        """See ``Cluster.state``."""
        return self._call(lambda cluster: cluster.state(_plain(job)))

    def wait_saved(self, job: SyncJobRef, *, timeout: float | None = None) -> None:
        """See ``Cluster.wait_saved``."""
        self._call(lambda cluster: cluster.wait_saved(_plain(job), timeout=timeout))

    def wait(self, job: SyncJobRef, *, timeout: float | None = None) -> JobState:
        """See ``Cluster.wait``."""
        return self._call(lambda cluster: cluster.wait(_plain(job), timeout=timeout))

    def wait_all(self, jobs: Iterable[SyncJobRef], *, timeout: float | None = None) -> dict[UUID, JobState]:
        """See ``Cluster.wait_all``."""
        plain = _plain_all(jobs)
        return self._call(lambda cluster: cluster.wait_all(plain, timeout=timeout))

    def result(self, job: SyncJobRef, *, timeout: float | None = None) -> Any:
        """See ``Cluster.result``."""
        return self._call(lambda cluster: cluster.result(_plain(job), timeout=timeout))

    @overload
    def results(
        self,
        jobs: Iterable[SyncReceipt[R]],
        *,
        timeout: float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> list[R]: ...

    @overload
    def results(
        self, jobs: Iterable[SyncReceipt[R]], *, timeout: float | None = None, return_exceptions: Literal[True]
    ) -> list[R | JobMasterError]: ...

    @overload
    def results(
        self, jobs: Iterable[SyncJobRef], *, timeout: float | None = None, return_exceptions: bool = False
    ) -> list[Any]: ...

    def results(
        self, jobs: Iterable[SyncJobRef], *, timeout: float | None = None, return_exceptions: bool = False
    ) -> list[Any]:
        """See ``Cluster.results``."""
        plain = _plain_all(jobs)
        return self._call(lambda cluster: cluster.results(plain, timeout=timeout, return_exceptions=return_exceptions))

    def as_ended(self, jobs: Iterable[J], *, timeout: float | None = None) -> Iterator[tuple[J, JobState]]:
        """See ``Cluster.as_ended``: an iterator of the jobs, as they were given, with their final states."""
        own: Any = jobs
        given: list[Any] = list(jobs)
        plain = _plain_all(own if isinstance(own, IdList) else given)
        waiting: dict[bytes, list[J]] = {}
        for one in given:
            waiting.setdefault(job_id_of(_plain(one)), []).append(one)
        stream = self._call(lambda cluster: _made(cluster.as_ended(plain, timeout=timeout)))
        try:
            while (ended := self._call(lambda _: _next(stream))) is not None:
                job, state = ended
                for one in waiting.pop(job_id_of(job), ()):
                    yield one, state
        finally:
            if not self._closed:
                self._call(lambda _: stream.aclose())

    def jobs(
        self,
        *,
        limit: int = LIMIT,
        after: SyncJobRef | None = None,
        payload: bool = True,
        at_most_seconds: float | None = None,
        **filters: Unpack[JobFilters],
    ) -> JobList:
        """See ``Cluster.jobs``."""
        return self._call(
            lambda cluster: cluster.jobs(
                limit=limit,
                after=None if after is None else _plain(after),
                payload=payload,
                at_most_seconds=at_most_seconds,
                **filters,
            )
        )

    def count(self, *, at_most: int = COUNTED, **filters: Unpack[JobFilters]) -> JobCount:
        """See ``Cluster.count``."""
        return self._call(lambda cluster: cluster.count(at_most=at_most, **filters))

    def attempts(self, job: SyncJobRef) -> list[Attempt]:
        """See ``Cluster.attempts``."""
        return self._call(lambda cluster: cluster.attempts(_plain(job)))

    def logs(self, job: SyncJobRef, *, after: LogLine | None = None, limit: int = LOG_LIMIT) -> list[LogLine]:
        """See ``JobLogReader.logs``."""
        return self._call(lambda cluster: cluster.logs(_plain(job), after=after, limit=limit))

    def retry(
        self,
        job: SyncJobRef,
        args: Mapping[str, object] | None = None,
        *,
        actor: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> SyncReceipt[Any]:
        """See ``Cluster.retry``."""
        return SyncReceipt(self, self._call(lambda cluster: cluster.retry(_plain(job), args, actor=actor, **options)))

    def cancel(self, job: SyncJobRef, *, actor: str = "client") -> JobState:
        """See ``Cluster.cancel``."""
        return self._call(lambda cluster: cluster.cancel(_plain(job), actor=actor))

    def change(self, job: SyncJobRef, *, actor: str = "client", **options: Unpack[ChangeOptions]) -> JobChange:
        """See ``Cluster.change``."""
        return self._call(lambda cluster: cluster.change(_plain(job), actor=actor, **options))

    def reschedule(
        self,
        job: SyncJobRef,
        *,
        at: datetime | None = None,
        after: float | timedelta | None = None,
        actor: str = "client",
    ) -> JobChange:
        """See ``Cluster.reschedule``."""
        return self._call(lambda cluster: cluster.reschedule(_plain(job), at=at, after=after, actor=actor))

    def reprioritise(
        self, job: SyncJobRef, priority: Priority | int | PriorityLabel, *, actor: str = "client"
    ) -> JobChange:
        """See ``Cluster.reprioritise``."""
        return self._call(lambda cluster: cluster.reprioritise(_plain(job), priority, actor=actor))

    def move(self, job: SyncJobRef, lane: str, *, actor: str = "client") -> JobChange:
        """See ``Cluster.move``."""
        return self._call(lambda cluster: cluster.move(_plain(job), lane, actor=actor))

    def run_now(self, job: SyncJobRef, *, actor: str = "client") -> JobChange:
        """See ``Cluster.run_now``."""
        return self._call(lambda cluster: cluster.run_now(_plain(job), actor=actor))

    def confirm_run(self, confirmation: str, result: object = None, *, actor: str = "client") -> None:
        """As ``Cluster.confirm_run``."""
        self._call(lambda cluster: cluster.confirm_run(confirmation, result, actor=actor))

    # ------------------------------------------------------------ pauses

    def pause(
        self,
        *,
        until: Until | None = None,
        reason: str = "",
        timeout: float | None = TIMEOUT_SECONDS,
        force: bool = False,
        actor: str = "client",
        **subject: Unpack[PauseSubject],
    ) -> PauseChange:
        """See ``Cluster.pause``."""
        return self._call(
            lambda cluster: cluster.pause(
                until=until, reason=reason, timeout=timeout, force=force, actor=actor, **subject
            )
        )

    def resume(
        self,
        *,
        reason: str = "",
        timeout: float | None = TIMEOUT_SECONDS,
        actor: str = "client",
        **subject: Unpack[PauseSubject],
    ) -> PauseChange:
        """See ``Cluster.resume``."""
        return self._call(lambda cluster: cluster.resume(reason=reason, timeout=timeout, actor=actor, **subject))

    def pauses(self) -> list[Pause]:
        """See ``Cluster.pauses``."""
        return self._call(lambda cluster: cluster.pauses())

    # ------------------------------------------------------------ batches

    def batch(self, name: str, /, **options: Unpack[BatchOptions]) -> SyncBatch:
        """See ``Cluster.batch``; for ``with``."""
        return SyncBatch(self, name, options)

    # ------------------------------------------------------------ locks

    def lock(
        self, name: str, /, *, ttl: Seconds = TTL_SECONDS, wait: Seconds | None = 0.0, label: str | None = None
    ) -> SyncLock:
        """See ``Cluster.lock``. The loss of the lock cannot end the body of the ``with`` statement: ``SyncLock.check``."""
        return SyncLock(self._call, lock_options(name, ttl, wait, label))

    def locks(self, name: str | None = None) -> list[LockView]:
        """See ``Cluster.locks``."""
        return self._call(lambda cluster: cluster.locks(name))

    def release_lock(self, name: str, *, actor: str = "client") -> LockView | None:
        """See ``Cluster.release_lock``."""
        return self._call(lambda cluster: cluster.release_lock(name, actor=actor))

    def once(self, name: str, version: str, action: Callable[[], Any], /, *, wait: Seconds | None = None) -> bool:
        """See ``Cluster.once``. The action runs in a thread of the cluster."""
        return self._call(lambda cluster: cluster.once(name, version, action, wait=wait))

    def once_actions(self) -> list[OnceView]:
        """See ``Cluster.once_actions``."""
        return self._call(lambda cluster: cluster.once_actions())

    def _receipt(self, receipt: JobReceipt[Any]) -> SyncReceipt[Any]:
        return SyncReceipt(self, receipt)

    # ------------------------------------------------------------ the thread behind

    def __enter__(self) -> Self:
        self._started()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish what is under way, close the cluster and end the thread. Also done at the end of the process."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            loop, thread, cluster = self._loop, self._thread, self._cluster
        if loop is None or thread is None:
            return
        try:
            if cluster is not None:
                asyncio.run_coroutine_threadsafe(cluster.close(), loop).result(_CLOSE_SECONDS)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_CLOSE_SECONDS)

    def _call(self, make: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        """Run one call in the background loop. Interrupting the caller (Ctrl-C) cancels the call."""
        loop, cluster = self._started()
        if threading.current_thread() is self._thread:
            raise JobMasterError(
                "a SyncCluster was called from its own background thread",
                hint="inside coroutines use the async Cluster",
            )
        future = asyncio.run_coroutine_threadsafe(make(cluster), loop)
        try:
            return future.result()
        except (KeyboardInterrupt, SystemExit):
            future.cancel()
            raise
        except concurrent.futures.CancelledError:
            raise JobMasterError("the cluster was closed while the call was under way") from None

    def _started(self) -> tuple[asyncio.AbstractEventLoop, Cluster]:
        if self._pid is not None and os.getpid() != self._pid:
            raise JobMasterError(
                "this SyncCluster was used before the process was forked",
                hint="use it for the first time after the fork, or open one in the worker's start hook",
            )
        loop, cluster = self._loop, self._cluster
        if loop is not None and cluster is not None and not self._closed:
            return loop, cluster
        with self._lock:
            if self._closed:
                raise JobMasterError("the cluster is closed", hint="open a new one")
            if self._loop is None or self._cluster is None:
                self._loop, self._cluster = self._start()
                _connected.add(self)
            return self._loop, self._cluster

    def _disconnect(self) -> None:
        """Close the cluster; the next call opens another."""
        with self._lock:
            loop, cluster = self._loop, self._cluster
            # A process that was forked off has the object, and not its thread.
            if loop is None or cluster is None or self._closed or os.getpid() != self._pid:
                return
            self._cluster = None
        asyncio.run_coroutine_threadsafe(cluster.close(), loop).result(_CLOSE_SECONDS)

    def _start(self) -> tuple[asyncio.AbstractEventLoop, Cluster]:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._pid = os.getpid()
            self._thread = threading.Thread(target=_run, args=(self._loop,), name="jobmaster-client", daemon=True)
            self._thread.start()
            atexit.register(_close_at_exit, weakref.ref(self))
        opening = asyncio.run_coroutine_threadsafe(_await(self._opener), self._loop)
        return self._loop, opening.result(_START_SECONDS)


def disconnect_all() -> None:
    """Close the connection of every ``SyncCluster`` of this process; the next call of each opens another. For tests, which
    such a cluster may outlive."""
    for cluster in list(_connected):
        try:
            cluster._disconnect()
        except (JobMasterError, OSError) as error:  # what a cluster was connected to may have ended meanwhile
            _log.warning("a cluster could not be closed: %s: %s", type(error).__name__, error)


_connected: weakref.WeakSet[SyncCluster] = weakref.WeakSet()
"""Those that have opened their clusters."""


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _await(opener: Callable[[], Awaitable[Cluster]]) -> Cluster:
    return await opener()


def _close_at_exit(reference: weakref.ref[SyncCluster]) -> None:
    cluster = reference()
    if cluster is not None:
        cluster.close()


def _plain(job: SyncJobRef) -> JobRef:
    return job._receipt if isinstance(job, SyncReceipt) else job


def _plain_all(jobs: Iterable[Any]) -> Iterable[JobRef]:
    """The ids of a summary stay what they are: it is known that their jobs exist."""
    return jobs if isinstance(jobs, IdList) else [_plain(job) for job in jobs]


async def _made(stream: AsyncIterator[T]) -> AsyncGenerator[T, None]:
    """The iterator is a generator, which must be closed where it is abandoned."""
    return cast(AsyncGenerator[T, None], stream)


async def _next(stream: AsyncGenerator[T, None]) -> T | None:
    return await anext(stream, None)
