"""Finds the byte of a stream of replies at which an effect is done, so that a proxy can lose exactly the acknowledgement.

PostgreSQL: the effect of a statement outside a transaction (and of ``COMMIT``) stands when ``CommandComplete`` is followed
by ``ReadyForQuery`` in state idle. Redis: a function has run when the first byte of its reply is there.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Protocol

import hiredis

_HEADER = 5
_SSL_REQUEST = struct.pack("!ii", 8, 80877103)
_READ_ONLY_TAGS = (b"SET", b"SHOW", b"BEGIN", b"LISTEN", b"DEALLOCATE", b"ROLLBACK")


class EffectWatcher(Protocol):
    """Reads both directions of one connection."""

    def request(self, data: bytes) -> None:
        """Bytes from the client."""
        ...

    def reply(self, data: bytes) -> bool:
        """Bytes from the server; True when an effect has been done whose acknowledgement (or its end) lies in them."""
        ...


class PostgresEffectWatcher:
    """Follows the message boundaries of one backend."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._opening = bytearray()
        self._answer_bytes = 0
        self._tag = b""

    def request(self, data: bytes) -> None:
        if len(self._opening) < len(_SSL_REQUEST):
            self._opening += data[: len(_SSL_REQUEST)]
            if self._opening[: len(_SSL_REQUEST)] == _SSL_REQUEST:
                self._answer_bytes = 1  # 'N': one byte that is no message

    def reply(self, data: bytes) -> bool:
        if self._answer_bytes:
            data, self._answer_bytes = data[1:], 0
        self._buffer += data
        committed = False
        at, end = 0, len(self._buffer)
        while end - at >= _HEADER:
            size = 1 + int.from_bytes(self._buffer[at + 1 : at + _HEADER], "big")
            if end - at < size:
                break
            kind = self._buffer[at]
            if kind == ord("C"):
                self._tag = bytes(self._buffer[at + _HEADER : at + size - 1])
            elif kind == ord("s"):  # as many rows as were asked for; what the statement wrote is committed all the same
                self._tag = b"PORTAL"
            elif kind == ord("Z"):
                if self._tag and self._buffer[at + _HEADER] == ord("I") and not self._tag.startswith(_READ_ONLY_TAGS):
                    committed = True
                self._tag = b""
            at += size
        del self._buffer[:at]
        return committed


class RedisEffectWatcher:
    """Pairs replies with requests. A connection that subscribes is left alone: its messages answer no request."""

    def __init__(self, functions: frozenset[bytes] = frozenset()) -> None:
        self._functions = functions
        self._requests = hiredis.Reader()
        self._replies = hiredis.Reader()
        self._waiting: deque[bool] = deque()
        self._subscribed = False

    def request(self, data: bytes) -> None:
        if self._subscribed:
            return
        self._requests.feed(data)
        while isinstance(words := self._requests.gets(), list):  # no list: incomplete, or an inline command
            name = bytes(words[0]).upper()
            if name.endswith(b"SUBSCRIBE"):
                self._subscribed = True
                return
            matters = name == b"FCALL" and (not self._functions or bytes(words[1]) in self._functions)
            self._waiting.append(matters)

    def reply(self, data: bytes) -> bool:
        if self._subscribed:
            return False
        effect = bool(self._waiting) and self._waiting[0]  # its first byte is in here, or has been before
        self._replies.feed(data)
        while self._replies.gets() is not False:
            if self._waiting:
                effect = self._waiting.popleft() or effect
        return effect
