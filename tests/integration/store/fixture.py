"""What the tests of the store functions share: entries, a bucket with its fence, and a look behind the functions."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, NamedTuple, cast

import redis.asyncio

from jobmaster.agentstore.store import AgentStore
from jobmaster.clock import new_id
from jobmaster.codec import encode_entry
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.model.job import Entry
from jobmaster.ports import PlacementStore, ReplyStatus, Submitted

HOUR_MS = 3_600_000
ROOM = {"high_water_jobs": 10**9, "high_water_bytes": 10**15}
"""Limits of a bucket that is never full."""


def make_entry(job_id: bytes | None = None, *, token: int = 1, size: int = 16) -> Entry:
    """A job with ``size`` bytes of arguments."""
    return Entry(id=job_id or new_id(), token=token, handler="tests.handler", args=b"x" * size)


def make_items(count: int, *, size: int = 16) -> list[bytes]:
    """Encoded fresh jobs."""
    return [encode_entry(make_entry(new_id(), size=size)) for _ in range(count)]


def new_fence(epoch: int = 1) -> Fence:
    """A bucket that does not exist yet, and its owner."""
    return Fence(BucketId(new_id()), epoch, AgentId(new_id()))


class OneBucketStore(NamedTuple):
    """A store, one ACTIVE bucket in it, and a plain client that looks behind the functions."""

    store: AgentStore
    fence: Fence
    raw: redis.asyncio.Redis

    @property
    def bucket_id(self) -> BucketId:
        return self.fence.bucket_id

    @property
    def meta(self) -> bytes:
        return self.store.keys.bucket(self.bucket_id).meta

    async def submit(self, items: Sequence[bytes], **limits: int) -> Submitted:
        """Submit with limits that do not matter, unless given."""
        return await submit(self.store, self.bucket_id, items, **limits)

    async def field(self, name: str) -> bytes | None:
        """One field of meta."""
        return cast("bytes | None", await _awaited(self.raw.hget(cast(str, self.meta), name)))

    async def force(self, **fields: bytes | str | int) -> None:
        """Write fields of meta as no function would."""
        await _awaited(self.raw.hset(cast(str, self.meta), mapping=cast(Any, fields)))

    async def contents(self) -> dict[bytes, bytes]:
        """Every key of the bucket with its serialised value: equal before and after means nothing was written."""
        found = {}
        async for key in self.raw.scan_iter(match=self.meta.removesuffix(b"meta") + b"*", count=1000):
            found[key] = await _awaited(self.raw.dump(key))
        return found

    async def tokens(self) -> int:
        """Wake tokens that lie there."""
        return cast(int, await _awaited(self.raw.llen(cast(str, self.store.keys.bucket(self.bucket_id).wake))))


async def submit(store: PlacementStore, bucket_id: bytes, items: Sequence[bytes], **limits: int) -> Submitted:
    """Submit with limits that do not matter, unless given."""
    wide = ROOM | {"skew_ms_max": HOUR_MS}
    return await store.submit(bucket_id, items, **{**wide, **limits})


async def assert_ok(status: Awaitable[ReplyStatus]) -> None:
    """The call answers OK."""
    assert await status is ReplyStatus.OK


async def blocked_pops(raw: redis.asyncio.Redis, cluster: str) -> int:
    """Connections of the cluster that stand in a blocking pop, as the server sees them."""
    clients = cast(list[dict[str, str]], await _awaited(raw.client_list()))
    return sum(client["name"] == f"jobmaster:{cluster}:wake" and "b" in client["flags"] for client in clients)


async def _awaited(value: Any) -> Any:
    """The driver's commands are typed as either a value or a promise of one."""
    return await value
