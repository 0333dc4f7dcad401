"""Function calls: packing, the status of an answer, errors at the border. One place for the hot path.

Each call names the first of its keys. One server needs no such thing and does not look at it; of a server cluster the key
chooses the node (``node_calls``).

redis-py packs commands in Python (1 ms for 1,000 arguments here) and looks every reply up in a table of callbacks;
hiredis packs in C, and our answers need no callbacks, so both are passed by.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import redis.exceptions as driver
from hiredis import pack_command

from jobmaster.agentstore.errors import ArgumentsRefused, FunctionsMissing, NoReply, NotSent, translate
from jobmaster.agentstore.library import PREFIX
from jobmaster.agentstore.pipelined_connection import PipelinedConnection
from jobmaster.model.errors import CodeError
from jobmaster.ports import ReplyStatus

Argument = bytes | int
Answer = list[Any]
"""Reply of a function: its status, then the values that the function's header lists. Bytes and integers."""

Keyed = tuple[bytes, bytes]
"""One of the keys of a command, and the packed command."""

STATUSES = {status.value.encode(): status for status in ReplyStatus}


def pack(*arguments: Argument) -> bytes:
    """One command as it goes over the wire."""
    # The stub of hiredis declares a tuple of one item; it takes any number.
    return cast(bytes, pack_command(arguments))  # type: ignore[arg-type]


def pack_function(name: bytes, keys: Sequence[bytes], arguments: Sequence[Argument]) -> bytes:
    """FCALL of one function."""
    return pack(b"FCALL", name, len(keys), *keys, *arguments)


def function(verb: str) -> bytes:
    """Name of a function in the server: ``submit`` -> ``jm2_submit``."""
    return f"{PREFIX}{verb}".encode()


def status_of(answer: Answer) -> ReplyStatus:
    """Status of an answer: its first element."""
    try:
        return STATUSES[answer[0]]
    except KeyError:
        raise CodeError(f"a store function answered with the unknown status {answer[0]!r}") from None


class FunctionCaller:
    """Function calls over one connection, with the errors mapped.

    Args:
        where: the server, for messages.
        node: ``host:port`` of a node of a server cluster; empty: the server is the store.
    """

    def __init__(self, connection: PipelinedConnection, where: str, node: str = "") -> None:
        self._connection = connection
        self.where = where
        self.node = node
        self.reload: Callable[[], Awaitable[None]] | None = None
        """Loads the functions where ours are not; set by agents. A store that was restarted without its log has forgotten
        them, and an agent of an earlier build may have been the first to load its own."""

    async def nodes(self) -> Sequence[FunctionCaller]:
        """A caller for each server that has keys: of one server itself."""
        return (self,)

    async def layout(self) -> bytes:
        """Which node has which keys; as long as it stays the same, each key has been on one node."""
        return b""

    async def call(self, command: bytes, key: bytes = b"", *, mutating: bool) -> Any:
        """Reply of one packed command.

        Raises:
            Unavailable: nothing can have happened.
            OutcomeUnknown: the command may have been executed (only when it is ``mutating``).
            StoreRefused: an operator has to act.
        """
        try:
            return await self._connection.call(command)
        except (NotSent, NoReply, driver.RedisError) as error:
            raise translate(error, where=self.where, mutating=mutating) from None

    async def call_all(self, commands: Sequence[Keyed], *, mutating: bool) -> list[Any]:
        """Replies of several packed commands sent one behind the other (to each node); errors as for ``call``."""
        try:
            return await self._connection.call_all([command for _, command in commands])
        except (NotSent, NoReply, driver.RedisError) as error:
            raise translate(error, where=self.where, mutating=mutating) from None

    async def look(self, commands: Sequence[Keyed]) -> list[Any]:
        """Answers of several read-only functions; functions are loaded as by ``function``."""
        try:
            return await self.call_all(commands, mutating=False)
        except (FunctionsMissing, ArgumentsRefused):
            if self.reload is None:
                raise
            await self.reload()
        return await self.call_all(commands, mutating=False)

    async def function(
        self, name: bytes, keys: Sequence[bytes], arguments: Sequence[Argument] = (), *, mutating: bool = True
    ) -> Answer:
        """Answer of one function. Those that are missing, or do not take the arguments, are loaded once and called again,
        where ``reload`` is set."""
        command = pack_function(name, keys, arguments)
        try:
            return cast(Answer, await self.call(command, keys[0], mutating=mutating))
        except (FunctionsMissing, ArgumentsRefused):
            if self.reload is None:
                raise
            await self.reload()
        return cast(Answer, await self.call(command, keys[0], mutating=mutating))
