"""A connection that writes down what is done with it."""

from __future__ import annotations

from typing import Any


class RecordedConnection:
    """What code under test needs of an asyncpg connection.

    Args:
        fails: statements raise an error.
    """

    def __init__(self, *, fails: bool = False) -> None:
        self.log: list[Any] = []
        self._fails = fails

    def transaction(self) -> RecordedTransaction:
        return RecordedTransaction(self.log)

    async def execute(self, statement: str, *arguments: object) -> None:
        if self._fails:
            raise OSError("the server refused")
        self.log.append((statement, *arguments))


class RecordedTransaction:
    """One transaction."""

    def __init__(self, log: list[Any]) -> None:
        self._log = log

    async def start(self) -> None:
        self._log.append("start")

    async def commit(self) -> None:
        self._log.append("commit")

    async def rollback(self) -> None:
        self._log.append("rollback")

    async def __aenter__(self) -> None:
        await self.start()

    async def __aexit__(self, kind: object, *_: object) -> None:
        await (self.commit() if kind is None else self.rollback())
