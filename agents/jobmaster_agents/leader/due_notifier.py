"""Sends hints: owners learn through their stores that HELD jobs of their lane and priority are due. So no agent polls.

Two owners of each lane and priority get a hint at a time, in turn; an owner with a greater share of the jobs has more turns.
Where owners differ in their handlers, two of each kind get a hint, because a hint does not name the jobs' handlers.

The leader notifies every second, a rescuer after it has evacuated a bucket. The notifier caches the cluster's ACTIVE buckets
and reads what has changed; a stale entry costs one hint that no agent reads. The turns of a lane and priority are arranged
when its jobs come due after a change of its owners. So the cost of a second follows from the groups that are due, and not
from the buckets of the cluster.

``notify`` only notes the groups; the periodic task calls the stores, all groups at the same time and each call with a short
time limit. So a silent store delays neither the leader's renewal nor the owners in other stores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

from jobmaster.clock import Clock
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.bucket_map import BucketMap, OwnerTraits
from jobmaster.model.errors import CodeError, JobMasterError
from jobmaster.ports import BucketQueries, HintStore
from jobmaster.telemetry import Telemetry
from jobmaster_agents.state.store_reachability import StoreReachability

PER_GROUP = 2
TURNS_MAX = 20
"""Turns of one owner for each turn of the one with the least share."""
HINT_SECONDS = 1.0
"""Time limit of one hint; after that the next owner has the turn."""
IDLE_SECONDS = 3600.0
_REFRESH_SECONDS_MIN = 0.5
"""Least time between two reads of the bucket map, also when an unserved lane needs it often."""

Group = tuple[str, int]
"""Lane and priority."""
_Kind = tuple[frozenset[str], frozenset[str]]
"""Handlers and capabilities of an owner: what decides which jobs it can take."""


class _Rotation:
    """Buckets of one lane and priority whose owners can run the same jobs, in the order of their turns."""

    __slots__ = ("turns",)

    def __init__(self, buckets: Sequence[Bucket], agents: Mapping[bytes, OwnerTraits]) -> None:
        shares = [agents[bucket.owner].share if bucket.owner in agents else 1.0 for bucket in buckets]
        least = min(shares)
        turns = []
        for bucket, share in zip(buckets, shares, strict=True):
            times = min(round(share / least), TURNS_MAX)
            turns += [((turn + 0.5) / times, bucket.id, bucket) for turn in range(times)]
        turns.sort(key=itemgetter(0, 1))
        self.turns = [bucket for _, _, bucket in turns]


class DueNotifier:
    """The bucket map, the turns of the owners, and the periodic task that calls the stores.

    Args:
        reachability: silent stores are skipped.
        map_seconds: greatest age of the bucket map when it is used.
    """

    name = "due-notifier"

    def __init__(
        self,
        queries: BucketQueries,
        stores: Mapping[str, HintStore],
        reachability: StoreReachability,
        clock: Clock,
        telemetry: Telemetry,
        *,
        map_seconds: float,
    ) -> None:
        self._queries = queries
        self._stores = stores
        self._reachability = reachability
        self._now = clock.boottime
        self._telemetry = telemetry
        self._map_seconds = map_seconds
        self._map = BucketMap()
        self._map_at = float("-inf")
        self._members: dict[Group, dict[bytes, Bucket]] = {}
        """ACTIVE buckets of each lane and priority; none without one."""
        self._placed: dict[bytes, Group] = {}
        """Where each of them stands."""
        self._rotations: dict[Group, dict[_Kind, _Rotation]] = {}
        """Of the groups that have come due since their owners changed."""
        self._turns: dict[tuple[Group, _Kind], int] = {}
        self._due: set[Group] = set()
        self.kicked = asyncio.Event()

    async def notify(self, groups: Iterable[Group], *, afresh: bool = False) -> set[Group]:
        """Schedule hints to two owners of each group, in turn. Calls the master at most, never a store.

        Args:
            groups: lanes and priorities with due jobs.
            afresh: read the bucket map again (owners have just died).

        Returns:
            The groups without an ACTIVE bucket.
        """
        wanted = set(groups)
        age = self._now() - self._map_at
        if wanted and (
            afresh or age >= self._map_seconds or (wanted - self._members.keys() and age >= _REFRESH_SECONDS_MIN)
        ):
            await self._refresh()
        if served := wanted & self._members.keys():
            self._due |= served
            self.kicked.set()
        return wanted - self._members.keys()

    async def tick(self) -> float:
        """Send the hints that were scheduled since the last tick."""
        due, self._due = self._due, set()
        # Resolved here: the map may be replaced before the first store is called. Sorted: a set of texts has another order in
        # each process, and a seed of the simulation is one history in all of them.
        rounds = [
            (group, *kind)
            for group in sorted(due)
            if group in self._members
            for kind in self._rotations_of(group).items()
        ]
        await asyncio.gather(*(self._notify(group, kind, each.turns) for group, kind, each in rounds))
        return IDLE_SECONDS

    async def _refresh(self) -> None:
        began = self._now()
        touched = self._map.take(await self._queries.bucket_map(self._map.version))
        for bucket_id in touched.buckets:
            self._place(bucket_id)
        if touched.owners:
            self._rotations.clear()
        self._map_at = began

    def _place(self, bucket_id: bytes) -> None:
        """Bring one bucket into line with the map."""
        if (group := self._placed.pop(bucket_id, None)) is not None:
            self._rotations.pop(group, None)
            del self._members[group][bucket_id]
            if not self._members[group]:
                del self._members[group]
        bucket = self._map.buckets.get(bucket_id)
        if bucket is not None and bucket.state is BucketState.ACTIVE:
            group = self._placed[bucket_id] = (bucket.lane, bucket.priority)
            self._rotations.pop(group, None)
            self._members.setdefault(group, {})[bucket_id] = bucket

    def _rotations_of(self, group: Group) -> dict[_Kind, _Rotation]:
        found = self._rotations.get(group)
        if found is None:
            agents = self._map.agents
            kinds: dict[_Kind, list[Bucket]] = {}
            for bucket in self._members[group].values():
                kinds.setdefault(_kind_of(agents.get(bucket.owner)), []).append(bucket)
            found = self._rotations[group] = {kind: _Rotation(alike, agents) for kind, alike in kinds.items()}
        return found

    async def _notify(self, group: Group, kind: _Kind, turns: Sequence[Bucket]) -> None:
        """Send hints to the next two owners in turn; the turn of an owner in a silent store passes to the next."""
        notified: set[bytes] = set()
        first = self._turns.get((group, kind), 0)
        for step in range(len(turns)):
            bucket = turns[(first + step) % len(turns)]
            if bucket.id in notified or not self._reachability.answers(bucket.store) or not await self._hint(bucket):
                continue
            notified.add(bucket.id)
            self._turns[group, kind] = (first + step + 1) % len(turns)
            if len(notified) == PER_GROUP:
                break
        self._telemetry.hints += len(notified)

    async def _hint(self, bucket: Bucket) -> bool:
        try:
            async with asyncio.timeout(HINT_SECONDS):
                await self._stores[bucket.store].hint(bucket.id)
        except CodeError:
            raise
        except (JobMasterError, TimeoutError) as error:
            self._reachability.failed(bucket.store, error)
            return False
        return True


def _kind_of(traits: OwnerTraits | None) -> _Kind:
    return (traits.handlers, traits.capabilities) if traits is not None else (frozenset(), frozenset())
