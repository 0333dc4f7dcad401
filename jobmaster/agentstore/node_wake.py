"""Waiting for the wake tokens of buckets in a server cluster: a connection and a blocking pop for each bucket.

One command cannot wait for keys of several hash slots. A bucket on a node that is away does not keep the others waiting: its
pop is begun again beside theirs, and then the owner claims from it once, because a token may be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import redis.exceptions as driver

from jobmaster.agentstore.calls import pack
from jobmaster.agentstore.connections import Connector
from jobmaster.agentstore.errors import NotSent
from jobmaster.agentstore.keys import Keys
from jobmaster.agentstore.node_map import NodeMap, named_node, slot_of
from jobmaster.agentstore.wake_wait import SHORTEST_SECONDS, mapped
from jobmaster.model.errors import CodeError, JobMasterError

PAUSE_SECONDS = 0.05
PAUSE_SECONDS_MAX = 1.0


class NodeWakeWaiter:
    """One blocking pop for each bucket of an owner, over all nodes."""

    def __init__(self, connector: Connector, nodes: NodeMap, keys: Keys, *, timeout_seconds: float) -> None:
        self._connector = connector
        self._map = nodes
        self._keys = keys
        self._timeout_seconds = timeout_seconds
        self._pop_seconds = SHORTEST_SECONDS
        self._pops: dict[bytes, asyncio.Task[None]] = {}
        self._woken: dict[bytes, None] = {}
        """In the order of their tokens."""
        self._faults: dict[bytes, BaseException] = {}
        self._news = asyncio.Event()
        self._busy = False

    async def wait(self, bucket_ids: Sequence[bytes], timeout_seconds: float) -> bytes | None:
        """A bucket that has had a token, or whose pop was interrupted; ``None`` after the time-out.

        Raises:
            Unavailable, StoreRefused: no pop of any of these buckets is under way.
        """
        if self._busy:
            raise CodeError("wait_wake is already waiting: it serves one call at a time")
        if not bucket_ids:
            raise CodeError("wait_wake needs at least one bucket to wait for")
        self._pop_seconds = max(timeout_seconds, SHORTEST_SECONDS)
        self._busy = True
        try:
            await self._pop_from(set(bucket_ids))
            async with asyncio.timeout(self._pop_seconds):
                while not self._woken:
                    if len(self._faults) == len(self._pops):
                        raise next(iter(self._faults.values()))
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return None
        finally:
            self._busy = False
        bucket_id = next(iter(self._woken))
        del self._woken[bucket_id]
        return bucket_id

    async def close(self) -> None:
        """End every pop."""
        await self._pop_from(set())

    async def _pop_from(self, bucket_ids: set[bytes]) -> None:
        ended = [self._pops.pop(bucket_id) for bucket_id in self._pops.keys() - bucket_ids]
        for kept in (self._woken, self._faults):
            for bucket_id in kept.keys() - bucket_ids:
                del kept[bucket_id]
        for bucket_id in bucket_ids - self._pops.keys():
            self._pops[bucket_id] = asyncio.get_running_loop().create_task(self._pop(bucket_id))
        for pop in ended:
            pop.cancel()
        if ended:
            await asyncio.wait(ended)

    async def _pop(self, bucket_id: bytes) -> None:
        key = self._keys.bucket(bucket_id).wake
        pause = PAUSE_SECONDS
        while True:
            try:
                await self._pop_on_one_node(bucket_id, key)
            except driver.MovedError:
                pause = PAUSE_SECONDS
            except (driver.AskError, driver.TryAgainError):
                pass  # the slot is being moved: until that is over, the owner claims from time to time
            except (NotSent, JobMasterError, driver.RedisError, OSError) as error:
                self._faults[bucket_id] = mapped(error, self._connector.where)
                self._map.read_soon()
                self._news.set()
            else:
                pause = PAUSE_SECONDS
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSE_SECONDS_MAX)

    async def _pop_on_one_node(self, bucket_id: bytes, key: bytes) -> None:
        slot = slot_of(key)
        at = self._map.owner(slot) or (await self._map.read()).owners[slot]
        if at is None:
            raise NotSent(f"no node serves hash slot {slot}")
        connection = await self._connector.open("wake", at)
        try:
            if self._faults.pop(bucket_id, None) is not None:
                self._wake(bucket_id)
            while True:
                seconds = self._pop_seconds
                async with asyncio.timeout(seconds + self._timeout_seconds):
                    await connection.send_packed_command(pack(b"BLPOP", key, b"%.3f" % seconds), check_health=False)
                    reply = await connection.read_response(disable_decoding=True, disconnect_on_error=False)
                if reply:
                    self._wake(bucket_id)
        except driver.AskError as error:
            if isinstance(error, driver.MovedError):
                self._map.moved(slot, named_node(error, at))
            self._wake(bucket_id)
            raise
        finally:
            await connection.disconnect(nowait=True)

    def _wake(self, bucket_id: bytes) -> None:
        self._woken[bucket_id] = None
        self._news.set()
