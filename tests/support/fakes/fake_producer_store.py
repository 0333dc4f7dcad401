"""``PlacementStore`` for tests of the choice of buckets and of batching: the test writes down the answers.

Nothing here stands in for a server; what servers do is tested against servers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from jobmaster.clock import new_id
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.ports import ReplyStatus, StoreHealth, Submitted

HEALTHY = StoreHealth("9.1", "valkey", "noeviction", True, "everysec", None, None)

Answer = Submitted | Exception
Script = Callable[["FakeProducerStore", bytes, Sequence[bytes]], Answer]


def takes_all(store: FakeProducerStore, bucket_id: bytes, items: Sequence[bytes]) -> Answer:
    return Submitted(ReplyStatus.OK, len(items))


class FakeProducerStore:
    """Answers submits and puts with its script, one turn of the loop later, and records them."""

    def __init__(self, script: Script = takes_all, health: StoreHealth | Exception = HEALTHY) -> None:
        self.script = script
        self.calls: list[tuple[bytes, list[bytes]]] = []
        self.marks: list[int] = []
        """High-water mark of each submit."""
        self.gate = asyncio.Event()
        """Cleared: calls hang until it is set."""
        self.gate.set()
        self.under_way = 0
        self.most_under_way = 0
        self.health_is = health

    async def submit(
        self,
        bucket_id: bytes,
        items: Sequence[bytes],
        *,
        high_water_jobs: int,
        high_water_bytes: int,
        skew_ms_max: int,
    ) -> Submitted:
        self.calls.append((bucket_id, list(items)))
        self.marks.append(high_water_jobs)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
            answer = self.script(self, bucket_id, items)
        finally:
            self.under_way -= 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def put(
        self,
        bucket_id: bytes,
        epoch: int,
        items: Sequence[tuple[int, bytes]],
        *,
        high_water_jobs: int,
        high_water_bytes: int,
    ) -> Submitted:
        return await self.submit(
            bucket_id,
            [item for _, item in items],
            high_water_jobs=high_water_jobs,
            high_water_bytes=high_water_bytes,
            skew_ms_max=0,
        )

    async def health(self) -> StoreHealth:
        if isinstance(self.health_is, Exception):
            raise self.health_is
        return self.health_is


def bucket(store: str = "default", lane: str = "default", priority: int = 3) -> Bucket:
    return Bucket(
        id=new_id(), store=store, lane=lane, priority=priority, state=BucketState.ACTIVE, epoch=1, owner=new_id()
    )
