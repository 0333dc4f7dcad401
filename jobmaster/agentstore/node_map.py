"""Which node of a server cluster (Redis Cluster, Valkey Cluster) serves which hash slot, as its nodes report it.

The map is read at the first call, and again after a reply or a fault that shows that it is old: a node that names another
one (``MOVED``), or that does not answer. It is taken from a node that reports the cluster as whole: one that is cut off from
the others knows what was true before, and answers still. Callers share one reading at a time.
Source of the rules: "Client and Server role in the Redis Cluster protocol" of the servers' cluster specification.

Why not the cluster client of redis-py: each of its calls takes a connection from a pool for itself (``pipelined_connection``
has why that is not done here), and it repeats calls by itself, also those that may have had an effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

import redis.exceptions as driver
from redis.asyncio.connection import AbstractConnection
from redis.crc import key_slot

from jobmaster.agentstore.errors import NotSent, translate
from jobmaster.agentstore.sentinel import Address, reply_of
from jobmaster.model.errors import StoreRefused

SLOTS = 16384
AGAIN_SECONDS = 0.1
"""A map is not read again within this time: a call that finds a node away would ask as often as it is made."""

Open = Callable[[str, Address], Awaitable[AbstractConnection]]
"""Opens a connection with a purpose to one node."""

slot_of = lru_cache(maxsize=65536)(key_slot)
"""The hash slot of a key."""


class SlotMap(NamedTuple):
    """What one node has reported."""

    owners: list[Address | None]
    """By hash slot."""
    primaries: tuple[Address, ...]
    """Nodes that take writes; also those without a slot, such as nodes that were added a moment ago."""


class NodeMap:
    """The nodes of one server cluster, and their hash slots.

    Args:
        seeds: nodes of the URL.
        open_node: opens a connection to one node, authenticated and bounded in time.
        seconds: how long one node may take to answer.
        where: the store, for messages.
    """

    def __init__(self, seeds: Sequence[Address], open_node: Open, seconds: float, where: str) -> None:
        self._seeds = tuple(seeds)
        self._open = open_node
        self._seconds = seconds
        self._where = where
        self._map: SlotMap | None = None
        self._first = self._seeds[0]
        self._reading: asyncio.Task[SlotMap] | None = None
        self._read_at = float("-inf")

    def owner(self, slot: int) -> Address | None:
        """The primary of a hash slot; ``None`` where it is not known."""
        return None if self._map is None else self._map.owners[slot]

    def moved(self, slot: int, to: Address) -> None:
        """A node has named the primary of a slot. The whole map is read again soon: seldom it is one slot alone."""
        if self._map is not None:
            self._map.owners[slot] = to
        self.read_soon()

    async def primaries(self) -> tuple[Address, ...]:
        """All primaries at present.

        Raises:
            NotSent: no node answers, or none reports the cluster as whole.
            StoreRefused: the nodes are no cluster, or refuse the user.
        """
        return (await self.read()).primaries

    async def some_node(self) -> Address:
        """A node that has answered lately; raises as ``primaries``."""
        if self._map is None:
            await self.read()
        return self._first

    async def read(self) -> SlotMap:
        """Read the map, unless that was done a moment ago; raises as ``primaries``."""
        if self._reading is None:
            if self._map is not None and asyncio.get_running_loop().time() < self._read_at + AGAIN_SECONDS:
                return self._map
            self._reading = asyncio.get_running_loop().create_task(self._read())
            self._reading.add_done_callback(self._done)
        return await asyncio.shield(self._reading)

    def read_soon(self) -> None:
        """Begin to read the map. A fault is left to the next call, which meets it, too."""
        if self._reading is None and asyncio.get_running_loop().time() >= self._read_at + AGAIN_SECONDS:
            self._reading = asyncio.get_running_loop().create_task(self._read())
            self._reading.add_done_callback(self._done)

    async def close(self) -> None:
        """End a reading that is under way."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    def _done(self, reading: asyncio.Task[SlotMap]) -> None:
        self._reading = None
        self._read_at = asyncio.get_running_loop().time()
        if not reading.cancelled():
            # Looked at here in case no caller waits for it; asyncio would report it as forgotten.
            reading.exception()

    async def _read(self) -> SlotMap:
        faults = []
        for at in self._candidates():
            try:
                found = await self._ask(at)
            except NotSent as error:
                faults.append(f"{at}: {error}")
                continue
            self._map, self._first = found, at
            return found
        raise NotSent(f"no node reports the cluster as whole ({'; '.join(faults)})")

    def _candidates(self) -> list[Address]:
        """The node that answered last, the other primaries, the nodes of the URL; each once."""
        known = () if self._map is None else self._map.primaries
        return list(dict.fromkeys((self._first, *known, *self._seeds)))

    async def _ask(self, at: Address) -> SlotMap:
        try:
            async with asyncio.timeout(self._seconds):
                connection = await self._open("nodes", at)
                try:
                    state = cast(bytes, await reply_of(connection, b"CLUSTER", b"INFO"))
                    if b"cluster_state:ok" not in state:
                        raise NotSent("it reports the cluster as down")
                    slots = cast("list[list[Any]]", await reply_of(connection, b"CLUSTER", b"SLOTS"))
                    nodes = cast(bytes, await reply_of(connection, b"CLUSTER", b"NODES"))
                finally:
                    await connection.disconnect(nowait=True)
        except (TimeoutError, driver.TimeoutError):
            raise NotSent(f"no answer within {self._seconds:g} s") from None
        except driver.NoPermissionError as error:
            raise translate(error, where=f"{self._where}, node {at}", mutating=False) from None
        except driver.ResponseError as error:
            if "cluster support disabled" in str(error):
                raise StoreRefused(
                    f"{self._where}: {at} is no node of a Redis or Valkey Cluster",
                    hint="a server by itself has a URL such as redis://host:6379/0",
                ) from None
            raise NotSent(str(error)) from None
        except (driver.RedisError, OSError) as error:
            raise NotSent(str(error)) from None
        return _parsed(at, slots, nodes.decode())


def _parsed(asked: Address, slots: list[list[Any]], nodes: str) -> SlotMap:
    """``CLUSTER SLOTS`` has the addresses that clients are to use, ``CLUSTER NODES`` also nodes without slots."""
    owners: list[Address | None] = [None] * SLOTS
    addresses: dict[str, Address] = {}
    for first, last, primary, *_ in slots:
        at = addresses[primary[2].decode()] = _address(primary[0], primary[1], asked)
        owners[first : last + 1] = [at] * (last + 1 - first)
    for line in nodes.splitlines():
        node, where, flags, above, *_ = line.split(" ")
        known = set(flags.split(","))
        if above == "-" and node not in addresses and not known & {"fail", "fail?", "handshake", "noaddr"}:
            host, _, port = where.partition("@")[0].rpartition(":")
            addresses[node] = _address(host.encode(), int(port), asked)
    return SlotMap(owners, tuple(addresses.values()))


def _address(host: bytes | None, port: int, asked: Address) -> Address:
    """Where a node does not know its own address, it is the one that it was asked at."""
    return Address(asked.host if host in (None, b"", b"?") else host.decode(), port)


def named_node(error: driver.AskError, asked: Address) -> Address:
    """The node that a ``MOVED`` or ``ASK`` names."""
    return Address(error.host or asked.host, error.port)
