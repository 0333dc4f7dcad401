"""What the calls of a cluster share: its settings, its connections, and what is opened at the first use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Self

from jobmaster.client.breakers.breakers import Breakers
from jobmaster.client.bucket_directory import BucketDirectory
from jobmaster.client.events.event_readers import EventReaders
from jobmaster.client.handler_lookup import HandlerLookup
from jobmaster.client.inspect.inspection import Inspection
from jobmaster.client.jobs.changes import JobChanger
from jobmaster.client.jobs.existence import ExistenceCheck
from jobmaster.client.jobs.job_logs import JobLogReader
from jobmaster.client.jobs.result_waiter import ResultWaiter
from jobmaster.client.jobs.results import Results
from jobmaster.client.limits.limits import Limits
from jobmaster.client.lookup import JobLookup
from jobmaster.client.operate.operating import Operating
from jobmaster.client.signals.signals import Signals
from jobmaster.client.store_handle import store_handles
from jobmaster.client.submit_router import SubmitRouter
from jobmaster.client.submitter import SubmitChecks, Submitter, TracedSubmitter
from jobmaster.client.tenants.tenants import Tenants
from jobmaster.clock import Clock, SystemClock
from jobmaster.handlers import Handlers
from jobmaster.model.errors import JobMasterError
from jobmaster.ports import ClientMaster, ClientStore, SubmitSpan, SubmitTraces
from jobmaster.settings.model import ClusterSettings
from jobmaster.telemetry import Telemetry


class ClusterParts:
    """Made, opened and closed as one.

    Args:
        on_close: closes what the caller has opened for this cluster, after everything else is closed.
        traces: spans of submits; ``None``: there are none.
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
        traces: SubmitTraces | None = None,
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
        self.traces = traces
        self._store_handles = store_handles(settings, stores, self._clock)
        self._buckets = BucketDirectory(
            master.queries, self._store_handles, self._clock, settings.leases.bucket_map_seconds
        )
        self._job_lookup = lookup = JobLookup(master, stores, self._buckets)
        handler_lookup = HandlerLookup(self.handlers, master.queries, settings.jobs, self._clock)
        self._submit_checks = checks = SubmitChecks(settings, handler_lookup, self._clock, traces)
        self._results = Results(master.queries, self.handlers, self._clock, self._submit_checks.cipher)
        self.limits = Limits(master.limits)
        """How many jobs may run at once: ``await cluster.limits.set("stripe", 50)``; see ``Limits``."""
        self.tenants = Tenants(master.queries, settings.tenants.weights)
        """What waits and runs for each tenant: ``await cluster.tenants.list()``; see ``Tenants``."""
        self.operate = Operating(master, stores, self._refuse_closed)
        """Agents and buckets: ``await cluster.operate.drain(agent)``; see ``Operating``."""
        self.breakers = Breakers(master.breakers, self._refuse_closed)
        """Circuit breakers: ``await cluster.breakers.open("stripe")``; see ``Breakers``."""
        self.signals = Signals(master.signals, settings.limits, self._refuse_closed)
        """Signals: ``await cluster.signals.send("order:17", {"paid": True})``; see ``Signals``."""
        self.logs = JobLogReader(master.job_logs, self._job_lookup).logs
        """Lines that the runs of a job have written: ``await cluster.logs(job)``; see ``JobLogReader``."""
        readers = EventReaders(master, stores, self.handlers, self._clock, self._refuse_closed)
        self.listen = readers.listen
        """Events as they happen: ``async for event in cluster.listen(tag="orders")``; see ``EventReaders``."""
        self.events = readers.events
        """Events as recorded: ``async for event in cluster.events(after=cursor)``; see ``EventReaders``."""
        self.inspect = Inspection(settings, master, stores, lookup, self.handlers, checks, self._refuse_closed)
        """What operators see: ``await cluster.inspect.overview()``; see ``Inspection``."""

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
        lookup, traces = self._submit_checks.handler_lookup, self.traces
        if traces is None:
            self._submitter = Submitter(self.settings, lookup, router, self._clock)
        else:
            self._submitter = TracedSubmitter(self.settings, lookup, router, self._clock, traces)
        return self._submitter

    def _publishing(self, handler: str | None) -> AbstractContextManager[SubmitSpan | None]:
        """The span of a call that submits many jobs; nothing where traces are off."""
        return nullcontext() if self.traces is None else self.traces.begin(handler)

    def _open_waiter(self) -> ResultWaiter:
        self._refuse_closed()
        if self._waiter is None:
            existence = ExistenceCheck(self.master.queries, self.stores, self._buckets)
            self._waiter = ResultWaiter(self.master.queries, self.stores, self._clock, existence)
        return self._waiter

    def _refuse_closed(self) -> None:
        if self._closed:
            raise JobMasterError("the cluster is closed", hint="open a new one")
