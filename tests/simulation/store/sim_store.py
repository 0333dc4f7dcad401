"""The product's own ``AgentStore`` on a simulated server: everything above the function calls runs as it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any

from jobmaster.agentstore.calls import Answer, Argument, FunctionCaller
from jobmaster.agentstore.fences import Fences
from jobmaster.agentstore.keys import Keys
from jobmaster.agentstore.producer import FIND, found_in
from jobmaster.agentstore.store import BACKLOG, AgentStore
from jobmaster.model.bucket import BucketBacklog, BucketDepth
from jobmaster.model.errors import StoreRefused
from jobmaster.model.job import Entry
from jobmaster.ports import StoreHealth
from tests.simulation.faults.nemesis import Nemesis
from tests.simulation.runtime.event_loop import PROCESS, Process, SimLoop
from tests.simulation.runtime.network import NO_PROCESS, Network, Server
from tests.simulation.store.functions import StoreFunctions

CLUSTER = "sim"
_KEYS = Keys(CLUSTER)


class _Waiter:
    __slots__ = ("future", "keys", "process")

    def __init__(self, future: asyncio.Future[bytes | None], keys: list[bytes], process: Process | None) -> None:
        self.future = future
        self.keys = keys
        self.process = process


class StoreServer(Server):
    """The server: functions, wake tokens and who waits for them."""

    def __init__(
        self, name: str, loop: SimLoop, clock_us: Callable[[], int], on_emptying: Callable[[bytes | None], None]
    ) -> None:
        super().__init__(name, loop)
        self.functions = StoreFunctions(
            clock_us, self.woken, self.published, lambda meta: on_emptying(_KEYS.bucket_of(meta))
        )
        self.waiters: list[_Waiter] = []
        self.listeners: list[asyncio.Queue[bytes]] = []

    def woken(self, meta: bytes) -> None:
        """A bucket has a token: the first who waits for it takes it."""
        for waiter in self.waiters:
            if meta in waiter.keys and not waiter.future.done() and (waiter.process is None or waiter.process.alive):
                self.functions.buckets[meta].wake = False
                waiter.future.set_result(meta)
                return

    def published(self, ids: bytes) -> None:
        """Jobs have got their rows."""
        for queue in self.listeners:
            queue.put_nowait(ids)


class SimStoreCalls(FunctionCaller):
    """Function calls over a network."""

    def __init__(self, server: StoreServer, network: Network) -> None:
        self.where = server.name
        self.reload = None
        self._server = server
        self._network = network

    async def function(
        self, name: bytes, keys: Sequence[bytes], arguments: Sequence[Argument] = (), *, mutating: bool = True
    ) -> Answer:
        verb = name[4:].decode()
        functions = self._server.functions
        answer: Answer = await self._network.call(verb, lambda: functions.call(verb, keys, arguments), writes=mutating)
        return answer


class SimStore(AgentStore):
    """``AgentStore`` without a server of the real kind."""

    def __init__(self, server: StoreServer, network: Network, nemesis: Nemesis) -> None:
        self.cluster = CLUSTER
        self.name = server.name
        self.keys = _KEYS
        self._server = server
        self._network = network
        self._nemesis = nemesis
        self._calls = self._beats = SimStoreCalls(server, network)
        self._fences = Fences()
        self._connector: Any = SimpleNamespace(fails_over=False, nodes=None)  # no replica takes its place

    async def close(self) -> None:
        return None

    async def health(self) -> StoreHealth:
        def effect() -> StoreHealth:
            uid, generation = self._server.functions.owner or (None, None)
            return StoreHealth("9.1", "valkey", "noeviction", True, "everysec", generation, uid)

        health: StoreHealth = await self._network.call("health", effect, writes=False)
        return health

    async def initialise(self, cluster_uid: bytes, generation: bytes) -> bytes:
        functions = self._server.functions
        answer = await self._network.call(
            "adopt_store", lambda: functions.adopt_store((), (cluster_uid, generation)), writes=False
        )
        if answer[0] != b"OK":
            raise StoreRefused(f"{self.name} belongs to another cluster")
        self._fences.generation = answer[1]
        found: bytes = answer[1]
        return found

    async def backlogs(self, bucket_ids: Sequence[bytes]) -> list[BucketBacklog | None]:
        answers = []
        for bucket_id in bucket_ids:
            keys = self.keys.bucket(bucket_id)
            found = (keys.meta, keys.pending, keys.assigned)
            answers.append(await self._calls.function(BACKLOG, found, mutating=False))
        return [BucketBacklog(a[1], a[2], a[3] / 1e6, a[4]) if a[0] == b"OK" else None for a in answers]

    async def depths(self, bucket_ids: Sequence[bytes]) -> list[BucketDepth | None]:
        answers = [
            await self._calls.function(b"jm2_depth", (self.keys.bucket(b).meta,), mutating=False) for b in bucket_ids
        ]
        return [BucketDepth(*answer[1:]) if answer[0] == b"OK" else None for answer in answers]

    async def find(
        self, bucket_ids: Sequence[bytes], job_ids: Sequence[bytes], scan_max: int
    ) -> list[dict[bytes, Entry]]:
        calls = [self._find_call(bucket_id, job_ids, scan_max) for bucket_id in bucket_ids]
        return [found_in(await self._calls.function(FIND, *call, mutating=False)) for call in calls]

    async def known_buckets(self) -> list[bytes]:
        def effect() -> list[bytes]:
            return sorted(filter(None, map(self.keys.bucket_of, self._server.functions.buckets)))

        found: list[bytes] = await self._network.call("known_buckets", effect, writes=False)
        return found

    async def known_lists(self, bucket_id: bytes) -> list[str]:
        def effect() -> list[str]:
            bucket = self._server.functions.buckets.get(self.keys.bucket(bucket_id).meta)
            return sorted(name.decode() for name in bucket.claimed) if bucket is not None else []

        found: list[str] = await self._network.call("known_lists", effect, writes=False)
        return found

    async def verify(self) -> None:
        await self.health()

    async def ping(self) -> None:
        await self._network.call("ping", _nothing, writes=False)

    async def wait_wake(self, bucket_ids: Sequence[bytes], timeout_seconds: float) -> bytes | None:
        by_key = {self.keys.bucket(bucket_id).meta: bucket_id for bucket_id in bucket_ids}
        keys = list(by_key)
        server, loop, process = self._server, self._server.loop, PROCESS.get()
        future: asyncio.Future[bytes | None] = loop.create_future()
        waiter = _Waiter(future, keys, process)

        def effect() -> None:
            buckets = server.functions.buckets
            there = [key for key in keys if key in buckets and buckets[key].wake]
            if there:
                buckets[there[0]].wake = False
                future.set_result(there[0])
            else:
                server.waiters.append(waiter)

        try:
            await self._network.call("wait_wake", effect, writes=False)
            loop.call_later(timeout_seconds, _give_up, future, context=NO_PROCESS)
            found = await future
        finally:
            if waiter in server.waiters:
                server.waiters.remove(waiter)
        if found is not None and (self._nemesis.is_cut(process, server) or not server.up):
            return None  # the token is gone with the connection
        return by_key.get(found) if found is not None else None

    async def finished(self) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._server.listeners.append(queue)
        yield b""
        while True:
            ids = await queue.get()
            for start in range(0, len(ids), 16):
                yield ids[start : start + 16]


def _give_up(future: asyncio.Future[bytes | None]) -> None:
    if not future.done():
        future.set_result(None)


def _nothing() -> None:
    return None
