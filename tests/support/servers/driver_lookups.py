"""What drivers look up for every connection, looked up once per process.

asyncpg knows few array types by itself. A connection that meets another one, such as ``uuid[]``, reads the catalog with a
recursive query, whose plan takes a new session 10 ms of a processor: a quarter of the server's time in the tests of SQL
statements. The ids of PostgreSQL's own types are the same in every database; types of a schema are asked for as usual.

redis-py tells the store its own version, which it reads from the files of its distribution.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Collection
from functools import cache
from types import SimpleNamespace
from typing import Any

import asyncpg

_FIRST_OF_USERS = 16_384
"""PostgreSQL gives ids below this to its own objects (``FirstNormalObjectId``)."""
_NO_STATEMENT = SimpleNamespace(name="none was sent")
"""For the driver: what it has prepared last is still prepared."""


def remember_builtin_types() -> None:
    """From now on, for every connection of this process."""
    ask = asyncpg.Connection._introspect_types  # type: ignore[attr-defined]  # private, so that no stub has it
    known: dict[frozenset[int], Any] = {}

    async def answer(self: Any, type_ids: Collection[int], timeout: float | None) -> tuple[Any, Any]:
        key = frozenset(type_ids)
        if key in known:
            return known[key], _NO_STATEMENT
        types, statement = await ask(self, type_ids, timeout)
        if max(key) < _FIRST_OF_USERS:
            known[key] = types
        return types, statement

    asyncpg.Connection._introspect_types = answer  # type: ignore[attr-defined]


def remember_versions() -> None:
    """Of distributions; from now on, in this process."""
    importlib.metadata.version = cache(importlib.metadata.version)
