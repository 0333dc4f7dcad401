"""The outbox: messages to other systems, sent by ordinary jobs that are submitted in the transaction of the effects.

A message is a job of the handler ``outbox.<destination>``, which the application declares with
``@handlers.outbox(destination)``. Its row is written in the sender's transaction, so the message exists if and only if that
transaction is committed, and no table and no relay process are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any, Protocol

from jobmaster.clock import new_id
from jobmaster.handlers.names import check_name
from jobmaster.model import ids
from jobmaster.model.errors import ConfigError

PREFIX = "outbox."
DESTINATION_CHARS_MAX = 100
KEY_CHARS_MAX = 200
PARAMETERS = ("key", "payload")


class OutboxRuntime(Protocol):
    """What sends a message in the transaction of an attempt."""

    async def send_message(self, handler: str, arguments: dict[str, object], key: str | None) -> None: ...


class Outbox:
    """``ctx.outbox``: messages in the transaction of the attempt."""

    def __init__(self, runtime: OutboxRuntime) -> None:
        self._runtime = runtime

    async def send(self, destination: str, payload: object = None, *, key: str | None = None) -> str:
        """Send a message when, and only if, the transaction of ``ctx.transaction()`` is committed; the key of the message.

        Args:
            destination: as given to ``@handlers.outbox(destination)``.
            payload: what its handler gets as ``payload``; JSON without U+0000.
            key: what its handler gets as ``key``: the same in every attempt to send. The same key again, for the same
                destination and payload, is the same message. Default: a new one.

        Raises:
            InputError: outside ``async with ctx.transaction()``, or one of these cannot be meant.
            UnknownHandler: no agent has declared the destination.
            Conflict: the key was sent with another payload.
        """
        own = message_key() if key is None else check_key(key)
        await self._runtime.send_message(handler_of(destination), {"key": own, "payload": payload}, key)
        return own


def handler_of(destination: object) -> str:
    """The name of the handler that sends to a destination; ``InputError`` for what is no name."""
    return PREFIX + check_name(destination, "the destination of a message", DESTINATION_CHARS_MAX)


def check_key(key: object) -> str:
    """The key of a message; ``InputError`` when it cannot be one."""
    return check_name(key, "the key of a message", KEY_CHARS_MAX)


def message_key() -> str:
    """A new key: a UUIDv7 as text."""
    return ids.text(new_id())


def check_parameters(function: Callable[..., Any], destination: str) -> None:
    """``ConfigError`` unless the handler of a destination takes ``key`` and ``payload``, and nothing else but its context."""
    given = signature(function).parameters.values()
    named = [one.name for one in given if one.name in PARAMETERS and one.kind is not Parameter.POSITIONAL_ONLY]
    if len(named) != len(PARAMETERS):
        raise ConfigError(
            f"the handler of the outbox {destination!r} must take 'key' and 'payload'",
            hint="async def send(key: str, payload: dict) -> None",
        )
