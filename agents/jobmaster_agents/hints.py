"""Telling owners that HELD jobs of their lane and priority are due, through their stores, so that nobody polls the master.

Used by the coordinator every second and by a rescuer after it has drained a bucket. Keeps the cluster's ACTIVE buckets as
seen when they were last needed; a stale entry costs one hint that nobody reads.

``tell`` only chooses the groups; the stores are called by the duty's own tick, all groups at the same time and each call
with a short bound. So a store that does not answer delays neither the coordinator's office nor the owners of other stores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Protocol

from jobmaster.clock import Clock
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.errors import CodeError, JobMasterError
from jobmaster.telemetry import Telemetry
from jobmaster_agents.reach import Reach

PER_GROUP = 2
HINT_SECONDS = 1.0
"""How long one hint may take; after that the turn passes on."""
IDLE_SECONDS = 3600.0
_REFRESH_SECONDS_MIN = 0.5
"""The map is never read more often than this, however often an unserved lane asks for it."""

Group = tuple[str, int]
"""Lane and priority."""


class BucketMap(Protocol):
    """Where the ACTIVE buckets are listed."""

    async def buckets(self, *, states: Sequence[BucketState] = ()) -> list[Bucket]: ...


class HintStore(Protocol):
    """Where an owner is told."""

    async def hint(self, bucket_id: bytes) -> None: ...


class Hints:
    """The bucket map, whose turn it is, and the duty that calls the stores.

    Args:
        reach: silent stores are passed over.
        map_seconds: age at which the map is read again when it is needed.
    """

    name = "hints"

    def __init__(
        self,
        master: BucketMap,
        stores: Mapping[str, HintStore],
        reach: Reach,
        clock: Clock,
        telemetry: Telemetry,
        *,
        map_seconds: float,
    ) -> None:
        self._master = master
        self._stores = stores
        self._reach = reach
        self._now = clock.boottime
        self._telemetry = telemetry
        self._map_seconds = map_seconds
        self._map: dict[Group, list[Bucket]] = {}
        self._map_at = float("-inf")
        self._turns: dict[Group, int] = {}
        self._asked: set[Group] = set()
        self.kicked = asyncio.Event()

    async def tell(self, groups: Iterable[Group], *, afresh: bool = False) -> set[Group]:
        """Have two owners of each group told, in turn; the groups nobody serves. Waits for the master at most.

        Args:
            afresh: the map must be younger than this call (owners have just died).
        """
        wanted = set(groups)
        age = self._now() - self._map_at
        if wanted and (
            afresh or age >= self._map_seconds or (wanted - self._map.keys() and age >= _REFRESH_SECONDS_MIN)
        ):
            await self._refresh()
        if served := wanted & self._map.keys():
            self._asked |= served
            self.kicked.set()
        return wanted - self._map.keys()

    async def tick(self) -> float:
        """Tell the owners of what was asked since the last time."""
        asked, self._asked = self._asked, set()
        await asyncio.gather(*(self._tell(group) for group in asked if group in self._map))
        return IDLE_SECONDS

    async def _refresh(self) -> None:
        asked = self._now()
        fresh: dict[Group, list[Bucket]] = {}
        for bucket in await self._master.buckets(states=(BucketState.ACTIVE,)):
            fresh.setdefault((bucket.lane, bucket.priority), []).append(bucket)
        for buckets in fresh.values():
            buckets.sort(key=attrgetter("id"))  # they are told in turn, from one picture to the next
        self._map, self._map_at = fresh, asked

    async def _tell(self, group: Group) -> None:
        """The next two owners in turn; a store that does not answer passes the turn on."""
        buckets = self._map[group]
        told = 0
        first = self._turns.get(group, 0)
        for step in range(len(buckets)):
            bucket = buckets[(first + step) % len(buckets)]
            if not self._reach.answers(bucket.store) or not await self._hint(bucket):
                continue
            told += 1
            self._turns[group] = (first + step + 1) % len(buckets)
            if told == PER_GROUP:
                break
        self._telemetry.hints += told

    async def _hint(self, bucket: Bucket) -> bool:
        try:
            async with asyncio.timeout(HINT_SECONDS):
                await self._stores[bucket.store].hint(bucket.id)
        except CodeError:
            raise
        except (JobMasterError, TimeoutError) as error:
            self._reach.failed(bucket.store, error)
            return False
        return True
