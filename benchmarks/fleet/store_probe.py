"""What one call costs a store and its caller, by the size of its batch.

The store's side is the CPU of its process as the scheduler counts it: reading the command, the function, the append-only
file and the answer; ``INFO commandstats`` sees the function alone and stands beside it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import redis.asyncio

from benchmarks.fleet.cost_fitting import each, exact_cpu, fitted
from benchmarks.support.measured_cluster import MeasuredCluster
from benchmarks.support.report import progress
from jobmaster.agentstore.store import AgentStore
from jobmaster.clock import new_id
from jobmaster.codec import ID_AT, encode_entry
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.model.job import Entry
from jobmaster.ports import ReplyStatus

BATCHES = ((1, 1500), (10, 600), (100, 150), (1000, 30))
_ARGS = b'{"text":"' + b"x" * 89 + b'"}'
_BUCKETS = 15


class StoreProbe:
    """One owner of one bucket, and one producer."""

    def __init__(self, measured: MeasuredCluster) -> None:
        self._measured = measured
        self._fence = Fence(BucketId(new_id()), 1, AgentId(new_id()))
        self._lists = 0
        """Claimed lists so far: their numbers only grow, the store takes no lower one."""
        self._settled = 0

    async def measured(self) -> dict[str, Any]:
        """Points and fits of every call."""
        measured, settings = self._measured, self._measured.settings.stores["default"]
        store = await AgentStore.connect(cluster="bench", name="default", url=measured.url, settings=settings)
        look = redis.asyncio.from_url(measured.url)
        try:
            await store.initialise(new_id(), new_id())
            await store.open_bucket(self._fence)
            return await self._calls(store, look)
        finally:
            await store.close()
            await look.aclose()

    async def _calls(self, store: AgentStore, look: Any) -> dict[str, Any]:
        points: dict[str, list[dict[str, float]]] = {name: [] for name in ("submit", "claim", "settle")}
        for size, calls in BATCHES:
            ready = [[_entry() for _ in range(size)] for _ in range(calls + 6)]
            ids = [[entry[ID_AT] for entry in batch] for batch in ready]
            points["submit"].append(await self._point(look, size, calls, each(ready, partial(self._submit, store))))
            points["claim"].append(await self._point(look, size, calls, partial(self._claim, store, size)))
            points["settle"].append(await self._point(look, size, calls, each(ids, partial(self._settle, store))))
        beat = await self._point(look, 1, 2000, lambda: store.beat(self._fence.owner, 3.0))
        empty = await self._point(look, 1, 2000, lambda: self._claim(store, 0))
        grant_term = await self._point(look, 1, 1000, lambda: store.grant_term(self._fence, 10.0))
        hint = await self._point(look, 1, 1000, lambda: store.hint(self._fence.bucket_id))
        wakes = {}
        for name, many in (("wake", _BUCKETS), ("wake_one_bucket", 1)):
            woken = await self._point(look, 1, 1000, partial(self._woken, store, many))
            wakes[name] = {s: round(max(woken[s] - hint[s] - empty[s], 0.0), 2) for s in ("server", "client")}
        single = {"beat": beat, "empty_claim": empty, "grant_term": grant_term, "hint": hint, **wakes}
        progress(f"store: { {name: point['server'] for name, point in single.items()} }")
        return {
            **{
                name: {
                    "server_us": fitted([(p["x"], p["server"]) for p in at]),
                    "client_us": fitted([(p["x"], p["client"]) for p in at]),
                    "points": at,
                }
                for name, at in points.items()
            },
            **{
                name: {
                    "server_us": {"fixed": point["server"], "per": 0.0},
                    "client_us": {"fixed": point["client"], "per": 0.0},
                }
                for name, point in single.items()
            },
        }

    async def _point(self, look: Any, size: int, calls: int, call: Callable[[], Awaitable[object]]) -> dict[str, float]:
        """Mean CPU of a call at both sides."""
        for _ in range(6):
            await call()
        pid = self._measured.servers.status().valkey.pid or 0
        await look.config_resetstat()
        server, client = exact_cpu(pid), time.process_time()
        for _ in range(calls):
            await call()
        client, server = time.process_time() - client, exact_cpu(pid) - server
        stats = (await look.info("commandstats")).get("cmdstat_fcall", {"usec_per_call": 0.0})
        return {
            "x": size,
            "server": round(server / calls * 1e6, 2),
            "client": round(client / calls * 1e6, 2),
            "function": float(stats["usec_per_call"]),
        }

    async def _submit(self, store: AgentStore, items: list[bytes]) -> None:
        answer = await store.submit(
            self._fence.bucket_id, items, high_water_jobs=10**7, high_water_bytes=2**33, skew_ms_max=3_600_000
        )
        assert answer.status is ReplyStatus.OK, answer

    async def _claim(self, store: AgentStore, limit: int) -> None:
        self._lists += 1
        answer = await store.claim(self._fence, f"a-{self._lists}", limit)
        assert len(answer.entries) == limit

    async def _settle(self, store: AgentStore, ids: list[bytes]) -> None:
        self._settled += 1
        status = await store.settle(self._fence, [f"a-{self._settled}"], ids)
        assert status is ReplyStatus.OK, status

    async def _woken(self, store: AgentStore, buckets: int) -> None:
        """A blocking pop over all buckets of an agent that is already waiting when the token comes."""
        others = [self._fence.bucket_id, *(bytes(15) + bytes([n]) for n in range(1, buckets))]
        waiting = asyncio.ensure_future(store.wait_wake(others, 5.0))
        await asyncio.sleep(0.001)
        await store.hint(self._fence.bucket_id)
        await store.claim(self._fence, f"a-{self._lists}", 0)  # takes the hint, so that the next one wakes again
        assert await waiting == self._fence.bucket_id


def _entry() -> bytes:
    return encode_entry(Entry(new_id(), 1, "bench.noop", _ARGS))
