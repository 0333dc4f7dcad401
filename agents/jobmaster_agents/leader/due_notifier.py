"""Telling owners that HELD jobs of their lane and priority are due, through their stores, so that nobody polls the master.

Two owners of each lane and priority are told at a time, in turn; one with a greater share of the jobs has more turns. Where
owners differ in their handlers, two of each kind are told: whether a job's handler is among them, the hint does not say.

Used by the coordinator every second and by a rescuer after it has drained a bucket. Keeps the cluster's ACTIVE buckets as
seen when they were last needed; a stale entry costs one hint that nobody reads.

``tell`` only chooses the groups; the stores are called by the duty's own tick, all groups at the same time and each call
with a short bound. So a store that does not answer delays neither the coordinator's office nor the owners of other stores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Protocol

from jobmaster.clock import Clock
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.errors import CodeError, JobMasterError
from jobmaster.ports import Traits
from jobmaster.telemetry import Telemetry
from jobmaster_agents.state.store_reach import StoreReach

PER_GROUP = 2
TURNS_MAX = 20
"""Turns of one owner for each turn of the one with the least share."""
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

    async def served(self) -> dict[bytes, Traits]: ...


class HintStore(Protocol):
    """Where an owner is told."""

    async def hint(self, bucket_id: bytes) -> None: ...


class _Round:
    """Buckets of one lane and priority whose owners have the same handlers, in the order of their turns."""

    __slots__ = ("turns",)

    def __init__(self, buckets: Sequence[Bucket], traits: Mapping[bytes, Traits]) -> None:
        shares = [traits[bucket.owner].share if bucket.owner in traits else 1.0 for bucket in buckets]
        least = min(shares)
        turns = []
        for bucket, share in zip(buckets, shares, strict=True):
            times = min(round(share / least), TURNS_MAX)
            turns += [((turn + 0.5) / times, bucket.id, bucket) for turn in range(times)]
        turns.sort(key=itemgetter(0, 1))
        self.turns = [bucket for _, _, bucket in turns]


class DueNotifier:
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
        reach: StoreReach,
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
        self._map: dict[Group, dict[frozenset[str], _Round]] = {}
        self._map_at = float("-inf")
        self._turns: dict[tuple[Group, frozenset[str]], int] = {}
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
        # Read here: the map may be another one before the first store is asked.
        rounds = [(group, *kind) for group in asked if group in self._map for kind in self._map[group].items()]
        await asyncio.gather(*(self._tell(group, kind, each.turns) for group, kind, each in rounds))
        return IDLE_SECONDS

    async def _refresh(self) -> None:
        asked = self._now()
        fresh: dict[Group, dict[frozenset[str], list[Bucket]]] = {}
        buckets = await self._master.buckets(states=(BucketState.ACTIVE,))
        traits = await self._master.served()
        for bucket in buckets:
            kind = traits[bucket.owner].handlers if bucket.owner in traits else frozenset()
            fresh.setdefault((bucket.lane, bucket.priority), {}).setdefault(kind, []).append(bucket)
        self._map = {
            group: {kind: _Round(alike, traits) for kind, alike in kinds.items()} for group, kinds in fresh.items()
        }
        self._map_at = asked

    async def _tell(self, group: Group, kind: frozenset[str], turns: Sequence[Bucket]) -> None:
        """The next two owners in turn; a store that does not answer passes the turn on."""
        told: set[bytes] = set()
        first = self._turns.get((group, kind), 0)
        for step in range(len(turns)):
            bucket = turns[(first + step) % len(turns)]
            if bucket.id in told or not self._reach.answers(bucket.store) or not await self._hint(bucket):
                continue
            told.add(bucket.id)
            self._turns[group, kind] = (first + step + 1) % len(turns)
            if len(told) == PER_GROUP:
                break
        self._telemetry.hints += len(told)

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
