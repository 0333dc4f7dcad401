"""Telling owners that HELD jobs of their lane and priority are due, through their stores, so that nobody polls the master.

Used by the coordinator every second and by a rescuer after it has drained a bucket. Keeps the cluster's ACTIVE buckets as
seen when they were last needed; a stale entry costs one hint that nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Protocol

from jobmaster.clock import Clock
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.errors import JobMasterError
from jobmaster.telemetry import Telemetry

PER_GROUP = 2
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
    """The bucket map, and whose turn it is.

    Args:
        map_seconds: age at which the map is read again when it is needed.
    """

    def __init__(
        self,
        master: BucketMap,
        stores: Mapping[str, HintStore],
        clock: Clock,
        telemetry: Telemetry,
        *,
        map_seconds: float,
    ) -> None:
        self._master = master
        self._stores = stores
        self._now = clock.boottime
        self._telemetry = telemetry
        self._map_seconds = map_seconds
        self._map: dict[Group, list[Bucket]] = {}
        self._map_at = float("-inf")
        self._turns: dict[Group, int] = {}

    async def tell(self, groups: Iterable[Group], *, afresh: bool = False) -> set[Group]:
        """Tell two owners of each group, in turn; the groups nobody serves.

        Args:
            afresh: the map must be younger than this call (owners have just died).
        """
        wanted = set(groups)
        age = self._now() - self._map_at
        if wanted and (
            afresh or age >= self._map_seconds or (wanted - self._map.keys() and age >= _REFRESH_SECONDS_MIN)
        ):
            await self._refresh()
        for group in wanted & self._map.keys():
            await self._tell(group)
        return wanted - self._map.keys()

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
            store = self._stores.get(bucket.store)
            if store is None:
                continue
            try:
                await store.hint(bucket.id)
            except JobMasterError:
                continue  # seen and told by the duties that live on that store
            told += 1
            self._turns[group] = (first + step + 1) % len(buckets)
            if told == PER_GROUP:
                break
        self._telemetry.hints += told
