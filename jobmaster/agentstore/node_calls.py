"""Calls to a server cluster: each goes to the node that serves the hash slot of its key.

All keys of a bucket lie in one slot, and no call touches two buckets. So a bucket is on one node at a time, and what the
protocol knows of a server holds of a node: the generation and the change counter lie with the bucket, and an owner notices by
them that a failover has brought an older state.

There is one pipelined connection to each node. A reply or a fault that shows another node is followed, and the call is sent
again only when the first one cannot have had an effect: the error replies in ``NOT_RUN`` mean that the function did not
begin, and ``NotSent`` that nothing left this process. While the keys of a slot are moved one by one, a call with several
keys is refused (``TRYAGAIN``) as long as one of them is missing, and it is repeated for ``MOVING_SECONDS``; with all keys on
one side it runs there. Keys that a function uses without naming them would escape that check, so such functions get a key
that never exists (``BucketKeys.claimed_prefix``). A key that the function itself has emptied is missing, too, so no function
uses it after that (``lua/prelude.lua``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import redis.exceptions as driver

from jobmaster.agentstore.calls import FunctionCaller, Keyed, pack
from jobmaster.agentstore.connections import Connector
from jobmaster.agentstore.errors import FunctionsMissing, NoReply, NotSent, translate
from jobmaster.agentstore.node_map import NodeMap, named_node, slot_of
from jobmaster.agentstore.pipelined_connection import PipelinedConnection
from jobmaster.agentstore.sentinel import Address
from jobmaster.model.errors import Unavailable

MOVING_SECONDS = 1.0
"""A slot with one bucket is moved within milliseconds. A producer has other buckets, and the owner calls again by itself."""
PAUSE_SECONDS = 0.005
LOOK_SECONDS = 0.25
"""A connection that is not open by then may lead to a node that has died: the others are asked who serves the slot."""
REDIRECTS_MAX = 8
NOT_RUN = (driver.AskError, driver.TryAgainError, driver.ClusterDownError, NotSent)
"""Another node may run the command (``MOVED`` is an ``AskError`` of the driver), or the same one in a moment."""


class NodeConnection:
    """One link to each node, opened when a call goes there."""

    def __init__(self, connector: Connector, nodes: NodeMap, *, purpose: str, timeout_seconds: float) -> None:
        self._connector = connector
        self._map = nodes
        self._purpose = purpose
        self._timeout_seconds = timeout_seconds
        self._links: dict[Address, PipelinedConnection] = {}
        self._closed = False

    async def open(self) -> None:
        """Read which nodes there are, so that a wrong URL or password is reported before it is needed."""
        await self._map.primaries()

    def link(self, at: Address) -> PipelinedConnection:
        """The connection to one node; not open before the first call."""
        found = self._links.get(at)
        if found is None:
            if self._closed:
                raise NotSent("it was closed by this process")
            found = self._links[at] = PipelinedConnection(
                self._connector, purpose=self._purpose, timeout_seconds=self._timeout_seconds, at=at
            )
        return found

    async def call(self, command: bytes, key: bytes) -> object:
        """Reply of one packed command by the node of the key; errors as of ``PipelinedConnection.call``."""
        slot = slot_of(key)
        at = self._map.owner(slot)
        link = self._links.get(at) if at is not None else None
        if at is None or link is None or not link.is_open:
            return await self._follow(command, slot)
        try:
            return await link.call(command)
        except NOT_RUN as error:
            return await self._follow(command, slot, at, error)
        except NoReply:
            self._map.read_soon()
            raise

    async def close(self) -> None:
        """End every link; later calls fail."""
        self._closed = True
        for link in self._links.values():
            await link.close()

    async def _follow(
        self, command: bytes, slot: int, at: Address | None = None, error: Exception | None = None
    ) -> object:
        """Send the command to the node that serves the slot now.

        Args:
            at: the node that was tried.
            error: why it did not run the command.
        """
        loop = asyncio.get_running_loop()
        until, pause, redirects = loop.time() + MOVING_SECONDS, PAUSE_SECONDS, 0
        while True:
            asking = False
            if error is None or at is None:
                at = await self._owner(slot)
            elif isinstance(error, driver.TryAgainError):
                if loop.time() >= until:
                    raise error
                await asyncio.sleep(pause)
                pause *= 2
                at = await self._owner(slot)
            elif isinstance(error, driver.AskError):
                redirects += 1
                if redirects > REDIRECTS_MAX:
                    raise error
                if redirects > 1:
                    await asyncio.sleep(pause)
                asking, at = not isinstance(error, driver.MovedError), named_node(error, at)
                if not asking:
                    self._map.moved(slot, at)
            else:
                await self._map.read()
                owner = await self._owner(slot)
                if owner == at:
                    raise error
                at = owner
            try:
                return await self._sent(command, slot, at, asking=asking)
            except NOT_RUN as again:
                error = again
            except NoReply:
                self._map.read_soon()
                raise

    async def _sent(self, command: bytes, slot: int, at: Address, *, asking: bool) -> object:
        """The reply of one node. ``NotSent`` also when another one serves the slot before this one has been connected."""
        link = self.link(at)
        if asking:
            return (await link.call_all([pack(b"ASKING"), command]))[1]
        if not link.is_open:
            opening = asyncio.ensure_future(link.open())
            try:
                while not (await asyncio.wait([opening], timeout=LOOK_SECONDS))[0]:
                    await self._map.read()
                    if self._map.owner(slot) != at:
                        raise NotSent(f"{at} was left")
                opening.result()
            finally:
                opening.cancel()
        return await link.call(command)

    async def _owner(self, slot: int) -> Address:
        """The node that serves a slot, by the present map or a fresh one."""
        owner = self._map.owner(slot)
        if owner is None:
            owner = (await self._map.read()).owners[slot]
        if owner is None:
            raise NotSent(f"no node serves hash slot {slot}")
        return owner


class NodeCalls(FunctionCaller):
    """Function calls to a server cluster."""

    def __init__(self, connection: NodeConnection, nodes: NodeMap, where: str) -> None:
        self._nodes = connection
        self._map = nodes
        self.where = where
        self.node = ""
        self.reload = None

    async def nodes(self) -> Sequence[FunctionCaller]:
        """A caller for each primary, also for those without a slot.

        Raises:
            Unavailable: it is not known which there are.
        """
        try:
            primaries = await self._map.primaries()
            return [FunctionCaller(self._nodes.link(at), f"{self.where}, node {at}", str(at)) for at in primaries]
        except NotSent as error:
            raise translate(error, where=self.where, mutating=False) from None

    async def layout(self) -> bytes:
        """The slots of each primary, as itself reports them.

        Raises:
            Unavailable: slots are being moved key by key, so that a key may be read on neither side, or on both; or a
                node is a replica since a moment ago, whose primary has the keys.
        """
        own = []
        for node in await self.nodes():
            lines: bytes = await node.call(pack(b"CLUSTER", b"NODES"), mutating=False)
            line = next(line for line in lines.splitlines() if b"myself" in line)
            fields = line.split(b" ")
            if b"master" not in fields[2].split(b","):
                raise Unavailable(
                    f"{node.where} is no primary any more, so the keys of its slots cannot be listed there",
                    hint="this ends when the map of the nodes is read again",
                )
            if b"[" in line:
                raise Unavailable(
                    f"{node.where} is moving hash slots, so its keys cannot be listed now",
                    hint="this ends with the move of the slots",
                )
            own.append(b" ".join((fields[0], *fields[8:])))
        return b"\n".join(sorted(own))

    async def call(self, command: bytes, key: bytes = b"", *, mutating: bool) -> Any:
        """Reply of one packed command by the node of a key; errors as for one server.

        A node without the functions is one that was added a moment ago: an agent loads them, and until then it is
        ``Unavailable`` to others."""
        try:
            return await self._nodes.call(command, key)
        except (NotSent, NoReply, driver.RedisError) as error:
            translated = translate(error, where=self.where, mutating=mutating)
        if isinstance(translated, FunctionsMissing) and self.reload is None:
            raise Unavailable(translated.message, hint=translated.hint)
        raise translated

    async def call_all(self, commands: Sequence[Keyed], *, mutating: bool) -> list[Any]:
        """Replies of several packed commands, in order; the first failure is raised when all are in."""
        calls = [self.call(command, key, mutating=mutating) for key, command in commands]
        replies = await asyncio.gather(*calls, return_exceptions=True)
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
        return list(replies)
