"""The producer's cache of the buckets, read from the master, with the last known depth of each.

A stale cache is safe: a store refuses a bucket that it does not have or that takes no jobs (``NOBUCKET``, ``CLOSED``), and
the cache is renewed. While the master is down the last content is used, so intake goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from jobmaster.client.coalescer import answer_of, closed
from jobmaster.client.store_handle import StoreHandle
from jobmaster.clock import Clock
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.errors import JobMasterError
from jobmaster.ports import EVERY_OWNER, BucketQueries, OwnerTraits
from jobmaster.rules.backoff import backoff_delay
from jobmaster.rules.capabilities import lacking

REFRESH_AGAIN_SECONDS = 0.2
"""Least time between two refreshes."""
AVOID_SECONDS, AVOID_SECONDS_MAX = 0.2, 5.0
"""How long a bucket is avoided whose store did not answer: the first time, and at most."""
CLOSED_SECONDS = 5.0
"""A bucket that answered CLOSED or NOBUCKET is left alone this long, though the master may still list it."""

DEPTH_SECONDS = 1.0
"""Where owners take different shares, a depth older than this is ignored: a bucket that seems fuller for its share gets no
jobs, and so no newer answer."""

_log = logging.getLogger(__name__)


class BucketHandle:
    """The state of one bucket in this producer."""

    __slots__ = (
        "active",
        "answered_at",
        "avoid_until",
        "depth",
        "epoch",
        "failures",
        "full_until",
        "id",
        "lane",
        "owner",
        "priority",
        "share",
        "store_handle",
        "unsent",
        "window_full_until",
    )  # fmt: skip

    def __init__(self, bucket: Bucket, store_handle: StoreHandle) -> None:
        self.id = bucket.id
        self.active = True
        """It takes jobs, by its row in the master."""
        self.epoch = bucket.epoch
        self.owner = bucket.owner
        self.share = 1.0
        """Jobs its owner takes, against those of an owner with share 1."""
        self.lane = bucket.lane
        self.priority = bucket.priority
        self.store_handle = store_handle
        self.depth = 0
        """Jobs waiting, as last reported by the store."""
        self.answered_at = 0.0
        self.unsent = 0
        """Own jobs on their way."""
        self.full_until = 0.0
        self.window_full_until = 0.0
        """Until then it takes no jobs of tenants."""
        self.avoid_until = 0.0
        self.failures = 0

    def load(self, now: float) -> int:
        """Jobs that may be waiting in it now."""
        return self.unsent + (self.depth if now - self.answered_at < DEPTH_SECONDS else 0)

    def closed(self, now: float) -> None:
        """The store answered that the bucket takes no jobs."""
        self.avoid_until = now + CLOSED_SECONDS

    def failed(self, now: float) -> None:
        """The store did not answer: stay away, longer each time."""
        self.failures += 1
        self.avoid_until = now + backoff_delay(self.failures, AVOID_SECONDS, AVOID_SECONDS_MAX)

    def answered(self, depth: int, now: float) -> None:
        """The store took the jobs."""
        if depth >= 0:
            self.depth, self.answered_at = depth, now
        self.failures = 0


class BucketDirectory:
    """Cached buckets by (lane, priority); refreshed by age and on request, one query at a time."""

    def __init__(
        self, queries: BucketQueries, store_handles: Mapping[str, StoreHandle], clock: Clock, max_age_seconds: float
    ) -> None:
        self._queries = queries
        self._store_handles = store_handles
        self._clock = clock
        self._max_age = max_age_seconds
        self._groups: dict[tuple[str, int], tuple[BucketHandle, ...]] = {}
        self._served: dict[bytes, OwnerTraits] = {}
        self._serving: dict[tuple[str, int, str], tuple[BucketHandle, ...]] = {}
        self.mixed = False
        """True while owners of buckets differ in the handlers they have."""
        self._capabilities: frozenset[str] | None = None
        self.uneven = False
        """True while they differ in the share of the jobs they take."""
        self._stores_unknown: dict[bytes, str] = {}
        self._by_id: dict[bytes, BucketHandle] = {}
        self._known: tuple[bytes, ...] = ()
        self._lanes: set[str] = set()
        self._read_at: float | None = None
        self._tried_at = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def handles(self, lane: str, priority: int) -> tuple[BucketHandle, ...]:
        """ACTIVE buckets of a lane and priority, as last known."""
        return self._groups.get((lane, priority), ())

    def serving(self, lane: str, priority: int, handler: str) -> tuple[BucketHandle, ...]:
        """Those of them whose owners have the handler: in another bucket the job would only be given back by its agent."""
        key = (lane, priority, handler)
        found = self._serving.get(key)
        if found is None:
            handles = self.handles(lane, priority)
            found = tuple(each for each in handles if self._has(each.owner, handler))
            self._serving[key] = found
        return found

    def _has(self, owner: bytes, handler: str) -> bool:
        """An owner without published traits is assumed to have every handler."""
        traits = self._served.get(owner) or self._served.get(EVERY_OWNER)
        return traits is None or handler in traits.handlers

    def lacks(self, headers: bytes) -> bool:
        """True when some owner of a bucket does not know what the job with these headers requires: then the job is not put
        into a bucket, and agents that know it fetch it from the master."""
        return self._capabilities is not None and bool(lacking(headers, self._capabilities))

    def all_handles(self) -> list[BucketHandle]:
        """Every bucket that may hold jobs, whether it still takes some or not, as last known."""
        return list(self._by_id.values())

    def handle(self, bucket_id: bytes) -> BucketHandle | None:
        """One of them by id."""
        return self._by_id.get(bucket_id)

    @property
    def sees_all(self) -> bool:
        """False while some bucket that may hold jobs lies in a store that this producer does not know."""
        return not self._stores_unknown

    def store_unknown(self, bucket_id: bytes) -> str | None:
        """Name of the store of a bucket when this producer does not know the store; ``None`` for other buckets."""
        return self._stores_unknown.get(bucket_id)

    def bucket_ids(self) -> tuple[bytes, ...]:
        """Ids of all cached buckets, those included that are empty for good or lie in stores unknown here."""
        return self._known

    def lanes(self) -> set[str]:
        """Every lane that has, or lately had, a bucket."""
        return set(self._lanes)

    @property
    def is_read(self) -> bool:
        """True once the buckets have been read, however long ago."""
        return self._read_at is not None

    def is_fresh(self) -> bool:
        """True when no refresh is due."""
        return self._read_at is not None and self._clock.boottime() - self._read_at < self._max_age

    async def fresh(self) -> None:
        """Make sure that the buckets have been read. An old cache is renewed beside the traffic.

        Raises:
            Unavailable: they were never read, and the master gives no answer.
        """
        if self._read_at is None:
            await answer_of(self._start())
        elif not self.is_fresh():
            self._start_soon()

    async def known(self) -> None:
        """Read the buckets once, if the master answers; callers that cannot go on without them use ``fresh``."""
        if self._read_at is None:
            with contextlib.suppress(JobMasterError):
                await self.fresh()

    async def renew(self, *, outdated: bool = False) -> None:
        """Read the master again now (at most every ``REFRESH_AGAIN_SECONDS``); keep the old cache when it is down.

        Args:
            outdated: the master has newer buckets, so it is read in any case.
        """
        too_soon = not outdated and self._clock.boottime() - self._tried_at < REFRESH_AGAIN_SECONDS
        if too_soon and self._task is None and self._read_at is not None:
            return
        try:
            await answer_of(self._start())
        except JobMasterError as error:
            if self._read_at is None:
                raise
            _log.info("the bucket map could not be renewed: %s", error)

    async def close(self) -> None:
        """End the query that may be under way; no further one is made."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _start_soon(self) -> None:
        if not self._closed and self._clock.boottime() - self._tried_at >= REFRESH_AGAIN_SECONDS:
            self._start()

    def _start(self) -> asyncio.Task[None]:
        if self._closed:
            raise closed()
        if self._task is None:
            self._tried_at = self._clock.boottime()
            self._task = asyncio.get_running_loop().create_task(self._read())
            self._task.add_done_callback(self._done)
        return self._task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None and self._read_at is not None:
            _log.info("the bucket map could not be renewed: %s", error)

    async def _read(self) -> None:
        buckets = await self._queries.list_buckets()
        self._take(buckets, await self._queries.served())

    def _take(self, buckets: list[Bucket], served: dict[bytes, OwnerTraits]) -> None:
        groups: dict[tuple[str, int], list[BucketHandle]] = {}
        by_id: dict[bytes, BucketHandle] = {}
        stores_unknown: dict[bytes, str] = {}
        for bucket in buckets:
            self._lanes.add(bucket.lane)
            store_handle = self._store_handles.get(bucket.store)
            if bucket.state is BucketState.READY_TO_DELETE:
                continue
            if store_handle is None:
                stores_unknown[bucket.id] = bucket.store
                continue
            handle = self._by_id.get(bucket.id)
            if handle is None or handle.epoch != bucket.epoch:
                handle = BucketHandle(bucket, store_handle)
            by_id[bucket.id] = handle
            handle.active = bucket.state is BucketState.ACTIVE
            if (traits := served.get(bucket.owner) or served.get(EVERY_OWNER)) is not None:
                handle.share = traits.share
            if handle.active:
                groups.setdefault((bucket.lane, bucket.priority), []).append(handle)
        self._by_id, self._known = by_id, tuple(bucket.id for bucket in buckets)
        self._stores_unknown = stores_unknown
        self._groups = {key: tuple(handles) for key, handles in groups.items()}
        self._served, self._serving = served, {}
        known = [traits.capabilities for traits in served.values()]
        self._capabilities = frozenset.intersection(*known) if known else None
        self.mixed = len({traits.handlers for traits in served.values()}) > 1
        self.uneven = len({traits.share for traits in served.values()}) > 1
        self._read_at = self._clock.boottime()
