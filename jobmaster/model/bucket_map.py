"""The map of buckets: where they are and who owns them, as a reader keeps it and renews it by what has changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from jobmaster.model.bucket import Bucket, BucketState


class OwnerTraits(NamedTuple):
    """Properties of an owner of buckets that decide which jobs it gets."""

    handlers: frozenset[str]
    share: float
    """Relative number of jobs it takes; 1 is the usual owner."""
    capabilities: frozenset[str] = frozenset()
    """What its program knows."""


class MapVersion(NamedTuple):
    """Up to where a reader has read the changes of the map; it has a meaning for the master alone."""

    server: int
    """The start of the server: its transactions are counted by no other one."""
    horizon: int
    """The reader has every change of the transactions below."""


class MapChanges(NamedTuple):
    """What has changed since a version. What a reader has already may be in it again."""

    version: MapVersion
    whole: bool
    """All there is: what is not in it is not there."""
    buckets: Sequence[Bucket]
    owners: Sequence[tuple[Sequence[bytes], OwnerTraits | None]]
    """Ids of living agents that are alike, with their traits; ``None``: these agents have ended."""


class Touched(NamedTuple):
    """What a reader has to look at again after it has applied changes."""

    buckets: list[bytes]
    """Ids of those that may have changed, left or come back, each once."""
    owners: bool
    """Whether the living agents may have changed, or which of them own ACTIVE buckets."""


class BucketMap:
    """Buckets that may hold jobs, in any state but READY_TO_DELETE, and the living agents."""

    def __init__(self) -> None:
        self.buckets: dict[bytes, Bucket] = {}
        self.agents: dict[bytes, OwnerTraits] = {}
        self.version: MapVersion | None = None
        """``None``: the map has not been read."""
        self._active: Counter[bytes] = Counter()
        """ACTIVE buckets of each owner."""

    def take(self, changes: MapChanges) -> Touched:
        """Apply changes."""
        touched = dict.fromkeys(self.buckets) if changes.whole else {}
        owners = changes.whole or bool(changes.owners)
        if changes.whole:
            self.buckets.clear()
            self.agents.clear()
            self._active.clear()
        for bucket in changes.buckets:
            touched[bucket.id] = None
            owners |= self._put(bucket)
        for agents, traits in changes.owners:
            for agent_id in agents:
                if traits is None:
                    self.agents.pop(agent_id, None)
                else:
                    self.agents[agent_id] = traits
        self.version = changes.version
        return Touched(list(touched), owners)

    def traits_of_owners(self) -> list[OwnerTraits]:
        """Of each living agent that owns an ACTIVE bucket."""
        return [self.agents[owner] for owner in self._active if owner in self.agents]

    def _put(self, bucket: Bucket) -> bool:
        """Whether an owner has its first ACTIVE bucket now, or has lost its last one."""
        before = len(self._active)
        old = self.buckets.pop(bucket.id, None)
        if old is not None and old.state is BucketState.ACTIVE:
            self._active[old.owner] -= 1
            if not self._active[old.owner]:
                del self._active[old.owner]
        gone = len(self._active) < before
        if bucket.state is not BucketState.READY_TO_DELETE:
            self.buckets[bucket.id] = bucket
        if bucket.state is BucketState.ACTIVE:
            self._active[bucket.owner] += 1
        return gone or self._active[bucket.owner] == 1
