"""The producer's cache of the map of buckets, read from the master, with the last known depth of each.

The whole map is read once, and what has changed from then on. A stale cache is safe: a store refuses a bucket that it does
not have or that takes no jobs (``NOBUCKET``, ``CLOSED``), and the cache is renewed. If the changes do not show why, the whole
map is read. While the master is down the last content is used, so intake goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping

from jobmaster.client.coalescer import answer_of, closed
from jobmaster.client.store_handle import StoreHandle
from jobmaster.clock import Clock
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.bucket_map import BucketMap, MapChanges
from jobmaster.model.errors import JobMasterError
from jobmaster.ports import BucketQueries
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
        self._map = BucketMap()
        self._by_id: dict[bytes, BucketHandle] = {}
        self._stores_unknown: dict[bytes, str] = {}
        self._members: dict[tuple[str, int], dict[bytes, BucketHandle]] = {}
        """The ACTIVE ones of each lane and priority."""
        self._groups: dict[tuple[str, int], tuple[BucketHandle, ...]] = {}
        """The same, as they are handed out."""
        self._serving: dict[tuple[str, int, str], tuple[BucketHandle, ...]] = {}
        self.mixed = False
        """True while owners of buckets differ in the handlers they have."""
        self._capabilities: frozenset[str] | None = None
        self.uneven = False
        """True while they differ in the share of the jobs they take."""
        self._known: tuple[bytes, ...] | None = None
        self._lanes: set[str] = set()
        self._refused: set[bytes] = set()
        """Buckets that a store refused, though the map says that they take jobs."""
        self._whole_at = float("-inf")
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
        """An owner that is not known to live is assumed to have every handler."""
        traits = self._map.agents.get(owner)
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
        """Ids of all cached buckets, those included that lie in stores unknown here."""
        if self._known is None:
            self._known = tuple(self._map.buckets)
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

    def note_closed(self, handle: BucketHandle) -> None:
        """A store, or the master, answered that a bucket takes no jobs."""
        handle.closed(self._clock.boottime())
        self._refused.add(handle.id)

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
        refused, self._refused = self._refused, set()
        self._take(await self._queries.bucket_map(self._map.version))
        if self._unexplained(refused) and self._clock.boottime() - self._whole_at >= self._max_age:
            self._take(await self._queries.bucket_map(None))

    def _unexplained(self, refused: Iterable[bytes]) -> bool:
        """Whether a bucket is said to take jobs by a reading that began after it had refused some. That may be true: the
        store has lost it, and its owner has not noticed yet. Or a change of the map has been missed."""
        return any((handle := self._by_id.get(each)) is not None and handle.active for each in refused)

    def _take(self, changes: MapChanges) -> None:
        touched = self._map.take(changes)
        self._lanes.update(bucket.lane for bucket in changes.buckets)
        groups: set[tuple[str, int]] = set()
        for bucket_id in touched.buckets:
            groups |= self._replace(bucket_id)
        for group in groups:
            self._groups[group] = tuple(self._members[group].values())
        if touched.owners:
            self._compare_owners()
        if touched.owners or groups:
            self._serving = {}
        if touched.buckets:
            self._known = None
        self._read_at = self._clock.boottime()
        if changes.whole:
            self._whole_at = self._read_at

    def _replace(self, bucket_id: bytes) -> set[tuple[str, int]]:
        """Bring one bucket into line with the map; the lanes and priorities of which an ACTIVE one has changed."""
        groups: set[tuple[str, int]] = set()
        old = self._by_id.pop(bucket_id, None)
        self._stores_unknown.pop(bucket_id, None)
        if old is not None and old.active:
            groups.add((old.lane, old.priority))
            del self._members[old.lane, old.priority][bucket_id]
        bucket = self._map.buckets.get(bucket_id)
        if bucket is None:
            return groups
        store_handle = self._store_handles.get(bucket.store)
        if store_handle is None:
            self._stores_unknown[bucket_id] = bucket.store
            return groups
        handle = old if old is not None and old.epoch == bucket.epoch else BucketHandle(bucket, store_handle)
        handle.active = bucket.state is BucketState.ACTIVE
        self._set_share(handle)
        self._by_id[bucket_id] = handle
        if handle.active:
            group = (bucket.lane, bucket.priority)
            groups.add(group)
            self._members.setdefault(group, {})[bucket_id] = handle
        return groups

    def _compare_owners(self) -> None:
        traits = self._map.traits_of_owners()
        self.mixed = len({each.handlers for each in traits}) > 1
        self.uneven = len({each.share for each in traits}) > 1
        known = {each.capabilities for each in traits}
        self._capabilities = frozenset.intersection(*known) if known else None
        for handle in self._by_id.values():
            self._set_share(handle)

    def _set_share(self, handle: BucketHandle) -> None:
        owner = self._map.agents.get(handle.owner)
        handle.share = 1.0 if owner is None else owner.share
