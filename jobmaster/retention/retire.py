"""Ranges leave ``job``: the oldest first, each only when no store may hold one of its jobs alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta

from jobmaster.agentstore.store import AgentStore
from jobmaster.clock import SystemClock
from jobmaster.master.history.archive import Archive
from jobmaster.master.master import Master
from jobmaster.model.archive import ArchiveState
from jobmaster.model.errors import JobMasterError
from jobmaster.retention.floor import age_checked, refuse_if_held_alone
from jobmaster.settings.model import ClusterSettings
from jobmaster.wiring import open_master, open_reader, open_stores


class Retiring:
    """One retention: what is older than ``before`` leaves.

    Args:
        before: moment; ranges that were created wholly before it leave.
    """

    def __init__(
        self,
        archive: Archive,
        master: Master,
        stores: Mapping[str, AgentStore],
        *,
        registered: Collection[str],
        lost_stores: Collection[str],
        before: datetime,
        skew_seconds: float,
    ) -> None:
        self.before = before
        self._archive = archive
        self._master = master
        self._stores = stores
        self._registered = registered
        self._lost_stores = lost_stores
        self._skew_seconds = skew_seconds

    @property
    def bound(self) -> bytes:
        """Smallest id of ``before``."""
        return int(self.before.timestamp() * 1000).to_bytes(6, "big") + bytes(10)

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, settings: ClusterSettings, archive: Archive, older_than_seconds: float, lost_stores: Collection[str]
    ) -> AsyncIterator[Retiring]:
        """Connect to the master and to every store.

        Raises:
            InputError: the age is too small. Unavailable: a store does not answer, so its contents are unknown.
        """
        age = age_checked(older_than_seconds, settings.limits.clock_skew_seconds)
        async with AsyncExitStack() as stack:
            master = await open_master(settings, application_name="jobmaster-retire")
            stack.push_async_callback(master.close)
            reader = await open_reader(settings)
            stack.push_async_callback(reader.close)
            registered = [row["name"] for row in await reader.report("stores")]
            now_us = (await reader.report("server"))[0]["now_us"]
            named = {name: store for name, store in settings.stores.items() if name not in lost_stores}
            stores = await open_stores(settings, needed=tuple(named))
            for store in stores.values():
                stack.push_async_callback(store.close)
            yield cls(
                archive,
                master,
                {name: stores[name] for name in named},
                registered=registered,
                lost_stores=lost_stores,
                before=datetime.fromtimestamp(now_us / 1e6, UTC) - timedelta(seconds=age),
                skew_seconds=settings.limits.clock_skew_seconds,
            )

    async def all(self, progress: Callable[[str], None]) -> AsyncGenerator[str, None]:
        """Retire range after range; the name of each. First what a killed call has left, then the attic's sweep.

        Raises:
            Conflict: a store may hold a job of the next range alone; those before it have left.
        """
        left = await self._archive.finish(progress)
        if left is not None:
            progress(f"{left}: had left job, and is complete now")
            yield left
        swept = await self._archive.sweep(self.before, progress)
        if swept is not None:
            progress(f"{swept}: jobs that ended late have left the attic")
            yield swept
        while (name := await self._next(progress)) is not None:
            yield name

    async def forget_moved(self, progress: Callable[[str], None]) -> int:
        """Delete the rows of jobs that moved to another cluster long ago, if this one is archived; how many."""
        forgotten = await self._archive.forget_moved(self.before, progress)
        if forgotten:
            progress(f"{forgotten} rows of jobs that have moved to another cluster: deleted")
        return forgotten

    async def discarded(self, progress: Callable[[str], None]) -> AsyncGenerator[str, None]:
        """Drop retired ranges that are old enough and were never exported, without a copy; the name of each."""
        for found in await self._archive.ranges():
            if found.state is ArchiveState.DETACHED and found.hi <= self.bound and await self._archive.take(found.name):
                try:
                    await self._archive.drop(found.name, discard=True, progress=progress)
                finally:
                    with suppress(JobMasterError):  # the lock ends with the session
                        await self._archive.let_go(found.name)
                progress(f"{found.name}: dropped")
                yield found.name

    async def _next(self, progress: Callable[[str], None]) -> str | None:
        oldest = await self._archive.oldest()
        if oldest is None or oldest[2] > self.bound:
            return None
        await self._archive.seal(self.before)
        started = SystemClock().boottime()
        await refuse_if_held_alone(
            oldest[2],
            stores=self._stores,
            registered=self._registered,
            lost_stores=self._lost_stores,
            queries=self._master.queries,
            skew_seconds=self._skew_seconds,
        )
        # The stores were searched for ids below this very range and no other: retire_range takes the oldest below the
        # moment, so a second archiver that was faster leaves nothing for this call to take.
        upper = datetime.fromtimestamp(int.from_bytes(oldest[2][:6], "big") / 1000, UTC)
        done = await self._archive.detach(upper, progress)
        if done is None:
            return await self._next(progress)
        seconds = SystemClock().boottime() - started
        progress(f"{done[0]}: detached in {seconds:.1f} s, {done[1]} unfinished jobs stay in the attic")
        return done[0]
