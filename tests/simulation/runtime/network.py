"""Calls from a process to a simulated server, with every fault that a call can have.

The effect belongs to no process: once sent, a call goes on although its sender dies, stops, gives up or is cut off. It may
even be executed long after its sender got the error that no reply came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from enum import Enum
from typing import TYPE_CHECKING, Any

from jobmaster.model.errors import JobMasterError, OutcomeUnknown, Unavailable
from tests.simulation.runtime.event_loop import PROCESS, Process, SimLoop

if TYPE_CHECKING:
    from tests.simulation.checks.trace import Trace
    from tests.simulation.faults.nemesis import Nemesis

CALL_SECONDS = 0.25
"""After that the sender gives a call up."""
SILENT_CALL_SECONDS = 20.0
"""The same for a server that accepts requests and does not answer."""
NO_PROCESS = Context()

Effect = Callable[[], Any]


class CallFault(Enum):
    """The fault of one call."""

    OK = "ok"
    REFUSED = "no connection"
    """Nothing was sent."""
    LOST_REQUEST = "request lost"
    LOST_REPLY = "executed, reply lost"
    LATE = "given up, executed later"
    SLOW = "slow"
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after it was sent"
    PAUSE_BEFORE = "stopped before"
    PAUSE_AFTER = "stopped after it was sent"


class SentCall:
    """One call that is under way to a server."""

    __slots__ = ("effect", "gone", "reply", "sender")

    def __init__(self, effect: Effect, reply: asyncio.Future[Any] | None, sender: Process | None) -> None:
        self.effect = effect
        self.reply = reply
        self.sender = sender
        self.gone = False
        """Ended by the server: it is not executed any more."""


class Server:
    """A simulated server: up or not, with calls that wait for a lock or for their turn."""

    def __init__(self, name: str, loop: SimLoop) -> None:
        self.name = name
        self.loop = loop
        self.up = True
        self.unread: list[SentCall] | None = None
        """A list while it reads nothing: what was sent meanwhile, and is executed when it goes on."""
        self.waiting: dict[SentCall, None] = {}
        """Begun and not ended: they wait for a lock, or the machine is slow."""

    def begin(self, sent: SentCall, delay: float) -> None:
        """The request arrives."""
        if not self.up:
            self.drop(sent)
        elif delay:
            self.waiting[sent] = None
            self.loop.call_later(delay, self.end, sent, context=NO_PROCESS)
        else:
            self.end(sent)

    def go_on(self) -> None:
        """It reads again, and first what it has not read."""
        unread, self.unread = self.unread or [], None
        for sent in unread:
            self.begin(sent, 0.0)

    def end(self, sent: SentCall) -> None:
        """Its effect happens, all at once."""
        self.waiting.pop(sent, None)
        if sent.gone or not self.up:
            return
        reply = sent.reply
        try:
            answer = sent.effect()
        except JobMasterError as error:
            if reply is not None and not reply.done():
                _fail(reply, error)
        else:
            if reply is not None and not reply.done():
                reply.set_result(answer)

    def abort(self) -> None:
        """Everything that has begun ends without an effect."""
        for sent in list(self.waiting):
            self.drop(sent)

    def drop(self, sent: SentCall) -> None:
        """One call ends without an effect, and its connection with it."""
        sent.gone = True
        self.waiting.pop(sent, None)
        if sent.reply is not None and not sent.reply.done():
            _fail(sent.reply, OutcomeUnknown(f"{self.name} went away"))


def _fail(reply: asyncio.Future[Any], error: JobMasterError) -> None:
    reply.set_exception(error)
    reply.exception()  # read once, so that asyncio does not warn when the sender is dead


class Network:
    """Connection of a process to one server."""

    def __init__(self, server: Server, nemesis: Nemesis, trace: Trace) -> None:
        self.server = server
        self._nemesis = nemesis
        self._trace = trace
        self._loop = server.loop

    async def call(
        self,
        what: str,
        effect: Effect,
        *,
        writes: bool,
        ids: Sequence[bytes] = (),
        sees: Callable[[], None] | None = None,
    ) -> Any:
        """Answer of one call.

        Args:
            effect: what the server does, at one moment.
            sees: called when the request arrives; what the statement sees without a lock is of then.
        """
        process = PROCESS.get()
        call_fault = self._nemesis.call_fault(process, self.server, what, writes=writes)
        self._trace.call(self._loop.now, process, self.server.name, what, call_fault)
        if call_fault is not CallFault.OK:
            effect, reply = await self._disturbed(call_fault, process, what, effect, writes=writes, ids=ids, sees=sees)
            if reply is not None:
                return await reply
        if not self.server.up:
            raise await self._nobody_answers(what, writes=False, ids=ids)
        if self.server.unread is not None:
            return await self._unread(self.server.unread, what, effect, writes=writes, ids=ids)
        future: asyncio.Future[Any] = self._loop.create_future()
        sent = SentCall(effect, future, process)
        self._send(sent, self._nemesis.latency(), sees)
        if self.server.up:
            return await future
        raise await self._nobody_answers(what, writes=writes, ids=ids)

    async def _unread(
        self, unread: list[SentCall], what: str, effect: Effect, *, writes: bool, ids: Sequence[bytes]
    ) -> Any:
        """Executed when the server goes on, also when its sender is gone by then; answered if it still waits."""
        reply: asyncio.Future[Any] = self._loop.create_future()

        def give_up() -> None:
            if not reply.done():
                _fail(reply, self._error(what, writes=writes, ids=ids))

        def wait() -> None:
            if not reply.done():  # the server sees that the connection is closed, and does not wait
                effect()

        self._loop.call_later(SILENT_CALL_SECONDS, give_up, context=NO_PROCESS)
        unread.append(SentCall(wait if what == "wait_wake" else effect, reply, PROCESS.get()))
        return await reply

    def _send(self, sent: SentCall, seconds: float, sees: Callable[[], None] | None) -> None:
        self._loop.call_later(seconds, self._arrive, sent, sees, context=NO_PROCESS)

    def _arrive(self, sent: SentCall, sees: Callable[[], None] | None) -> None:
        if sees is not None:
            sees()
        self.server.begin(sent, self._nemesis.lock_wait())

    async def _disturbed(
        self, call_fault: CallFault, process: Process | None, what: str, effect: Effect, *, writes: bool,
        ids: Sequence[bytes], sees: Callable[[], None] | None,
    ) -> tuple[Effect, asyncio.Future[Any] | None]:  # fmt: skip
        """Carry the fault out. Returns when the call takes its ordinary way after all."""
        nemesis, loop = self._nemesis, self._loop
        match call_fault:
            case CallFault.REFUSED:
                raise await self._nobody_answers(what, writes=False, ids=ids)
            case CallFault.LOST_REQUEST:
                raise await self._nobody_answers(what, writes=writes, ids=ids)
            case CallFault.LOST_REPLY | CallFault.LATE:
                late = nemesis.long_wait() if call_fault is CallFault.LATE else 0.0
                self._send(SentCall(effect, None, process), nemesis.latency() + late, sees)
                raise await self._nobody_answers(what, writes=writes, ids=ids)
            case CallFault.SLOW:
                sent = SentCall(effect, loop.create_future(), process)
                self._send(sent, nemesis.long_wait(), sees)
                return effect, self._patiently(what, sent, writes=writes, ids=ids)
            case CallFault.CRASH_BEFORE:
                await self._die(process)
            case CallFault.CRASH_AFTER:
                self._send(SentCall(effect, None, process), nemesis.latency(), sees)
                await self._die(process)
            case CallFault.PAUSE_BEFORE:
                assert process is not None
                loop.halt(process, nemesis.pause())
                await asyncio.sleep(0)
            case CallFault.PAUSE_AFTER:
                assert process is not None
                sent = SentCall(effect, loop.create_future(), process)
                self._send(sent, nemesis.latency(), sees)
                loop.halt(process, nemesis.pause())
                return effect, sent.reply
        return effect, None

    def _patiently(self, what: str, sent: SentCall, *, writes: bool, ids: Sequence[bytes]) -> asyncio.Future[Any]:
        """The reply, or the error after the time the sender is ready to wait."""
        assert sent.reply is not None
        reply = sent.reply

        def give_up() -> None:
            if not reply.done():
                _fail(reply, self._error(what, writes=writes, ids=ids))

        self._loop.call_later(CALL_SECONDS, give_up, context=NO_PROCESS)
        return reply

    async def _die(self, process: Process | None) -> None:
        assert process is not None
        self._nemesis.crash(process)
        await self._loop.create_future()

    async def _nobody_answers(self, what: str, *, writes: bool, ids: Sequence[bytes]) -> JobMasterError:
        """The error, after the time it takes to get it."""
        await asyncio.sleep(CALL_SECONDS if writes else self._nemesis.latency())
        return self._error(what, writes=writes, ids=ids)

    def _error(self, what: str, *, writes: bool, ids: Sequence[bytes]) -> JobMasterError:
        if writes:
            return OutcomeUnknown(f"{what}: {self.server.name} did not answer", id_bytes=ids)
        return Unavailable(f"{what}: {self.server.name} cannot be reached")
