"""The object of the fixture ``jobs``: submits of the tested code are recorded, looked for, and run on request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from jobmaster import wiring
from jobmaster.client.cluster import Cluster
from jobmaster.client.sync import SyncCluster, disconnect_all
from jobmaster.handlers import Call, Handlers
from jobmaster.model.errors import InputError
from jobmaster.model.job import JobState
from jobmaster.settings.model import ClusterSettings
from jobmaster.testing.drained import Drained, seconds_of
from jobmaster.testing.due_fires import DueFire, fires_between
from jobmaster.testing.memory.agent import GivenByTest
from jobmaster.testing.memory.cluster import MemoryCluster, MemoryJobs
from jobmaster.testing.registries import FoundHandlers
from jobmaster.testing.submitted_jobs import SubmittedJob, Wanted, listed

_FOREVER_US = 2**62
_POLL_SECONDS = 0.005


class Jobs:
    """Jobs of one test, in memory. A job waits until ``drain`` runs it; after ``inline()`` it runs in its submit.

    ::

        async def test_signup(jobs):
            await sign_up("a@b")
            jobs.assert_submitted(send_mail, to="a@b")
            assert (await jobs.drain()).succeeded == 1

    ``jobmaster.connect`` and ``connect_sync`` give clusters in memory while the fixture is in use.

    Args:
        settings: lanes, limits and defaults.
        handlers: those that the jobs run with; a function that is declared in the registry of its own module is found too.
    """

    def __init__(self, settings: ClusterSettings, handlers: Handlers) -> None:
        # The given registry stays as it is: it may be the application's own.
        self.memory = MemoryJobs(settings, FoundHandlers(handlers))
        self._clusters: dict[int, tuple[asyncio.AbstractEventLoop, MemoryCluster]] = {}
        self._sync: SyncCluster | None = None

    # ------------------------------------------------------------ clusters

    @property
    def cluster(self) -> Cluster:
        """A cluster for code that is given one, on the running event loop."""
        loop = asyncio.get_running_loop()
        known = self._clusters.get(id(loop))
        if known is None or known[0] is not loop:
            known = self._clusters[id(loop)] = loop, self.memory.open()
        return known[1]

    @property
    def sync_cluster(self) -> SyncCluster:
        """The same for code without an event loop."""
        if self._sync is None:
            self._sync = SyncCluster(self._open, handlers=self.memory.handlers)
        return self._sync

    async def _open(self) -> MemoryCluster:
        return self.memory.open()

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Inside the block, ``connect`` and ``connect_sync`` open clusters of these jobs; after it they open what they opened
        before. They are changed where they make a cluster, so code that has imported them before uses memory too."""

        async def open_in_memory(
            settings: ClusterSettings,
            handlers: Handlers | None = None,
            passwords: object = None,
        ) -> Cluster:
            return self.memory.open(settings, handlers)

        before = wiring.open_cluster
        wiring.open_cluster = open_in_memory
        # One that a module of the application holds opens its cluster anew, in this test and in the next.
        disconnect_all()
        try:
            yield
        finally:
            wiring.open_cluster = before
            disconnect_all()
            self.memory.ended = True
            if self._sync is not None:
                self._sync.close()

    def give(self, *, resources: Any = None, connection: Any = None) -> None:
        """What handlers get from now on, in place of what an agent has.

        Args:
            resources: what ``ctx.resources`` is; ``None``: each ``drain`` enters and leaves the lifespans.
            connection: what ``ctx.transaction()`` gives, an asyncpg connection; ``None``: it is refused.
        """
        self.memory.given = GivenByTest(connection, resources)

    # ------------------------------------------------------------ modes

    @contextmanager
    def inline(self) -> Iterator[None]:
        """Inside the block, jobs that are due run before their submit returns, and a wait for a job runs it."""
        before, self.memory.inline = self.memory.inline, True
        try:
            yield
        finally:
            self.memory.inline = before

    # ------------------------------------------------------------ what was submitted

    def all_submitted(
        self, handler: Call[Any] | Callable[..., Any] | str | None = None, /, **args: Any
    ) -> list[SubmittedJob]:
        """Jobs in the order of their submits: all, or those of a handler that have these arguments.

        Raises:
            UnknownHandler, InvalidArguments: there is no such handler, or it takes no such argument.
        """
        found = [SubmittedJob(job) for job in list(self.memory.rows.jobs.values())]
        if handler is None:
            return found
        wanted = Wanted(handler, args, self.memory.handlers)
        return [job for job in found if wanted.matches(job)]

    def assert_submitted(
        self,
        handler: Call[Any] | Callable[..., Any] | str,
        /,
        *,
        within: float | timedelta | str = 0.0,
        **args: Any,
    ) -> SubmittedJob:
        """Assert that a job of the handler has these arguments (and possibly more); the first of them.

        Args:
            handler: the function, its name, or a call; a call can also name an argument ``within``.
            within: how long to wait for a submit of another thread, in seconds or as ``"200ms"``.

        Raises:
            AssertionError: there is none; the message lists what was submitted.
            UnknownHandler, InvalidArguments: there is no such handler, or it takes no such argument.
        """
        wanted = Wanted(handler, args, self.memory.handlers)
        patience = seconds_of(within, "within")
        ends = self.memory.rows.clock.boottime() + patience
        while True:
            jobs = self.all_submitted()
            found = next((job for job in jobs if wanted.matches(job)), None)
            if found is not None:
                return found
            if self.memory.rows.clock.boottime() >= ends:
                waited = f" within {patience:g} s" if patience else ""
                raise AssertionError(f"{wanted} was not submitted{waited}; {listed(jobs)}")
            threading.Event().wait(_POLL_SECONDS)

    def refute_submitted(self, handler: Call[Any] | Callable[..., Any] | str, /, **args: Any) -> None:
        """Assert that no job of the handler has these arguments.

        Raises:
            AssertionError: there is one.
            UnknownHandler, InvalidArguments: there is no such handler, or it takes no such argument.
        """
        wanted = Wanted(handler, args, self.memory.handlers)
        found = [job for job in self.all_submitted() if wanted.matches(job)]
        if found:
            raise AssertionError(f"{wanted} was submitted; {listed(found)}")

    # ------------------------------------------------------------ schedules

    def fires_between(self, start: datetime, end: datetime, name: str | None = None) -> list[DueFire]:
        """The fires of the schedules that the tested code declares, after ``start`` and up to ``end``, in order. None of them
        happens by itself in a test; ``await jobs.cluster.schedules.run(name)`` makes the job of one.

        Args:
            start, end: aware datetimes.
            name: of one schedule; ``None``: all.

        Raises:
            InputError: a naive datetime, more than 10,000 fires, or no schedule of that name.
        """
        return fires_between(self.memory.settings, self.memory.handlers, start, end, name)

    # ------------------------------------------------------------ running them

    async def drain(
        self, *, due_within: float | timedelta | str = 0.0, held: bool = False, raise_errors: bool = False
    ) -> Drained:
        """Run jobs, one attempt after another, until none is due; also those that handlers submit meanwhile.

        A job that is due later runs at once. While it runs, the clock shows the time at which it is due.

        Args:
            due_within: also jobs and further attempts that are due within this time: seconds, a timedelta, or ``"1h"``.
            held: all jobs and further attempts, however far ahead they are due.
            raise_errors: raise the error of the first handler that ended its job as failed.

        Returns: numbers of jobs that ended.

        Raises:
            InputError: both ``due_within`` and ``held``, or no duration.
        """
        ahead = seconds_of(due_within, "due_within")
        if ahead and held:
            raise InputError("'held' means all jobs, and 'due_within' some", hint="give one of them")
        rows = self.memory.rows
        ended = {job_id for job_id, job in rows.jobs.items() if job.state.final}
        await self.memory.run(_FOREVER_US if held else rows.clock.wall_us() + int(ahead * 1e6) if ahead else None)
        new = [job for job_id, job in rows.jobs.items() if job_id not in ended and job.state.final]
        if raise_errors:
            for job in new:
                if job.state is JobState.FAILED and job.raised is not None:
                    raise job.raised
        states = [job.state for job in new]
        return Drained(
            succeeded=states.count(JobState.SUCCEEDED),
            failed=states.count(JobState.FAILED),
            cancelled=states.count(JobState.CANCELLED),
            expired=states.count(JobState.EXPIRED),
            left=sum(not job.state.final for job in rows.jobs.values()),
        )

    def drain_sync(
        self, *, due_within: float | timedelta | str = 0.0, held: bool = False, raise_errors: bool = False
    ) -> Drained:
        """``drain`` for a test without an event loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.drain(due_within=due_within, held=held, raise_errors=raise_errors))
        raise InputError("drain_sync() was called in a coroutine", hint="await jobs.drain() there")
