"""One pipelined connection: commands go out in order, replies come back in order, each to its call.

Why not a pool with one connection per call in flight: a caller that is cancelled there leaves a connection with a reply
still to come, which the driver once handed to the next caller, and therefore has to be thrown away; a storm of cancelled
calls becomes a storm of reconnects. Here a caller that gives up leaves its *place* in the queue; its reply is read and
dropped when its turn comes, and no other call is affected. Concurrent calls share system calls, too. The server works on one
command at a time anyway.

What ends a link: the server closes it, a reply is overdue, a reply that no call waits for, or one that shows a replica.
(After a failover the same address, or a Sentinel, leads to the new primary, and a connection to the old one would stay open.)
Then every call on it fails at once: as ``NotSent`` when its bytes were still here, else as ``NoReply``. The next call makes a
new link.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import redis.exceptions as driver
from hiredis import Reader
from redis.asyncio.connection import AbstractConnection

from jobmaster.agentstore.connections import Connector
from jobmaster.agentstore.errors import NoReply, NotSent, is_reply, shows_replica
from jobmaster.agentstore.sentinel import Address

STALL_SECONDS = 0.05
"""An alarm that rings later than this means that our own loop stood still; the answer may lie in the socket already."""
GRACE_SECONDS = 0.25
"""How much longer it then waits, once."""

WRITTEN_AT_ONCE = 8
"""Calls that wait for replies, below which another one is written at once. A turn of a loop that runs jobs, or gives a
thousand callers their answers, takes milliseconds; a system call takes microseconds, and uvloop makes one for all writes of a
turn."""

_NOTHING = object()
"""No whole reply has come."""
_CLOSED_BY_SERVER = "the server closed the connection"


class _Call:
    """One command on its way."""

    __slots__ = ("command", "due", "reply")

    def __init__(self, command: bytes, due: float, reply: asyncio.Future[object]) -> None:
        self.command = command
        self.due = due
        """Loop time at which the reply is overdue."""
        self.reply = reply


class _Link(asyncio.Protocol):
    """The life of one connection.

    redis-py opens it and logs in; then its transport gets this class as its protocol, with a reader of hiredis of its own.
    The driver's own reading and writing (a stream, and a task for each direction) cost more than the rest of a call.
    """

    def __init__(self, connection: AbstractConnection, timeout_seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout_seconds = timeout_seconds
        self._outbox: list[_Call] = []
        self._waiting: deque[_Call] = deque()
        self._flushing = False
        self._paused = False
        """As much lies in the transport as may."""
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._dropped = False
        self._lost: asyncio.Future[None] = self._loop.create_future()
        """The transport is closed."""
        # The driver has no public names for these.
        stream, writer, parser = connection._reader, connection._writer, connection._parser
        assert stream is not None
        assert writer is not None
        self._reader = Reader(
            protocolError=driver.InvalidResponse, replyError=parser.parse_error, notEnoughData=_NOTHING
        )
        self._transport = writer.transport
        self._transport.set_protocol(self)
        self._end = self._loop.create_task(self._disconnect(connection))
        if stream.at_eof() or self._transport.is_closing():
            self.drop(_CLOSED_BY_SERVER)

    @property
    def dead(self) -> bool:
        """No call goes out any more. The transport knows it first."""
        return self._dropped or self._transport.is_closing()

    def call(self, command: bytes) -> asyncio.Future[object]:
        """Send a command; the future gets the reply, or the error reply as an exception.

        A command goes out at once while few others are on their way. Otherwise those of one turn of the loop go out in one
        write.
        """
        call = _Call(command, self._loop.time() + self._timeout_seconds, self._loop.create_future())
        if self.dead:
            call.reply.set_exception(NotSent("the connection has just been lost"))
            return call.reply
        if self._outbox or self._paused or len(self._waiting) >= WRITTEN_AT_ONCE:
            self._outbox.append(call)
            if not (self._flushing or self._paused):
                self._flushing = True
                self._loop.call_soon(self._flush)
        else:
            self._waiting.append(call)
            self._transport.write(command)
        if self._alarm is None:
            self._set_alarm(call.due)
        return call.reply

    def drop(self, reason: str) -> None:
        """End the link now; every call on it fails."""
        if self._dropped:
            return
        self._dropped = True
        if self._alarm is not None:
            self._alarm.cancel()
        for call in self._waiting:
            if not call.reply.done():
                call.reply.set_exception(NoReply(reason))
        for call in self._outbox:
            if not call.reply.done():
                call.reply.set_exception(NotSent(reason))
        self._waiting.clear()
        self._outbox.clear()
        self._transport.abort()

    async def close(self) -> None:
        """End the link and wait until nothing of it is left."""
        self.drop("the connection was closed by this process")
        await asyncio.wait((self._end,))

    async def _disconnect(self, connection: AbstractConnection) -> None:
        """Give the driver's connection back at the end."""
        try:
            await self._lost
        finally:
            self.drop("the connection was given up")
            await connection.disconnect(nowait=True)

    # ------------------------------------------------------------ called by the transport

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed, by whichever side."""
        self.drop(_CLOSED_BY_SERVER if exc is None else str(exc))
        if not self._lost.done():
            self._lost.set_result(None)

    def eof_received(self) -> None:
        """The server closes it."""
        self.drop(_CLOSED_BY_SERVER)

    def pause_writing(self) -> None:
        """Later calls wait here."""
        self._paused = True

    def resume_writing(self) -> None:
        """Calls go out again."""
        self._paused = False
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Each reply to its call."""
        if self._dropped:
            return
        try:
            self._reader.feed(data)
            while (outcome := self._reader.gets(False)) is not _NOTHING:
                self._deliver(outcome)
        except driver.RedisError as error:
            self.drop(str(error))

    # ------------------------------------------------------------ inside

    def _flush(self) -> None:
        """Everything that gathered goes out in one write."""
        self._flushing = False
        if self._outbox and not self._paused:
            calls, self._outbox = self._outbox, []
            self._waiting.extend(calls)
            self._transport.writelines([call.command for call in calls])

    def _deliver(self, outcome: object) -> None:
        if not self._waiting:
            raise driver.InvalidResponse("a reply came that no call waits for")
        reply = self._waiting.popleft().reply
        if isinstance(outcome, driver.RedisError):
            if not reply.done():
                reply.set_exception(outcome)
            if not is_reply(outcome):
                raise outcome
            if shows_replica(outcome):
                raise driver.ReadOnlyError("the server takes no writes: it is a replica, or has none")
        elif not reply.done():
            reply.set_result(outcome)

    def _ring(self) -> None:
        """One alarm for all calls: replies come in order, so the first call waiting is the first overdue."""
        self._alarm = None
        first = self._waiting[0] if self._waiting else self._outbox[0] if self._outbox else None
        if first is None:
            return
        now = self._loop.time()
        if now - self._alarm_at > STALL_SECONDS:
            self._set_alarm(now + GRACE_SECONDS)
        elif first.due <= now:
            self.drop(f"no answer within {self._timeout_seconds:g} s")
        else:
            self._set_alarm(first.due)

    def _set_alarm(self, at: float) -> None:
        self._alarm_at = at
        self._alarm = self._loop.call_at(at, self._ring)


class PipelinedConnection:
    """Calls to one server, over one link at a time; reconnects when the next call is made.

    Args:
        at: the node of a server cluster.
    """

    def __init__(
        self, connector: Connector, *, purpose: str, timeout_seconds: float, at: Address | None = None
    ) -> None:
        self._connector = connector
        self._purpose = purpose
        self._timeout_seconds = timeout_seconds
        self._at = at
        self._link: _Link | None = None
        self._opening: asyncio.Task[_Link] | None = None
        self._closed = False

    @property
    def is_open(self) -> bool:
        """A call goes out at once."""
        return self._link is not None and not self._link.dead

    async def open(self) -> None:
        """Connect now, so that a wrong URL or password is reported before it is needed."""
        await self._ready()

    async def call(self, command: bytes) -> object:
        """Reply of one packed command; error replies are raised as the driver's exceptions.

        Raises:
            NotSent: nothing left this process.
            NoReply: the command left and may have been executed.
        """
        link = self._link
        if link is None or link.dead:
            link = await self._ready()
        return await link.call(command)

    async def call_all(self, commands: Sequence[bytes]) -> list[object]:
        """Replies of several commands sent one behind the other, in order; the first failure is raised when all are in."""
        link = await self._ready()
        replies = await asyncio.gather(*[link.call(command) for command in commands], return_exceptions=True)
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
        return list(replies)

    async def close(self) -> None:
        """End the link; later calls fail."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._link is not None:
            await self._link.close()

    async def _ready(self) -> _Link:
        """The living link. Callers that find none share one attempt to connect: one after the other, each would wait for
        the time-outs of all before it. A caller that is cancelled leaves the attempt to the others."""
        if self._closed:
            raise NotSent("it was closed by this process")
        if self._link is not None and not self._link.dead:
            return self._link
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    async def _open(self) -> _Link:
        if self._link is not None:
            await self._link.close()
            self._link = None
        connection = await self._connector.open(self._purpose, self._at)
        self._link = _Link(connection, self._timeout_seconds)
        return self._link

    def _opened(self, attempt: asyncio.Task[_Link]) -> None:
        self._opening = None
        if not attempt.cancelled():
            # Looked at here in case every caller has been cancelled; asyncio would report it as forgotten.
            attempt.exception()
