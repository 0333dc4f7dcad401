"""``ctx.transaction()`` of one attempt: opened by the handler, ended by its runner. Used in agents and in their worker
processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

from jobmaster.codec import encode_args, encode_value
from jobmaster.model.errors import InputError, JobMasterError
from jobmaster.model.ids import text
from jobmaster.model.job import Conclusion, FinalRow
from jobmaster.model.trace_context import TraceContext


class OpenTransaction(Protocol):
    """One open transaction on the master."""

    @property
    def connection(self) -> Any: ...

    async def write(self, row: FinalRow) -> bool: ...

    async def submit(self, handler: str, args: str, options: str) -> None: ...

    async def commit(self) -> Conclusion: ...

    async def rollback(self) -> None: ...


class TransactionSource(Protocol):
    """Opens transactions on the master."""

    async def begin(self, attempt: str) -> OpenTransaction: ...


def attempt_name(row: FinalRow) -> str:
    """Identity of an attempt, as text."""
    return f"{text(row.id)}:{row.token}:{text(row.bucket_id)}:{row.bucket_epoch}"


async def conclude(opened: OpenTransaction, row: FinalRow, allowed: Callable[[], bool]) -> Conclusion:
    """Write the outcome as the last statement, and commit.

    Args:
        allowed: whether this process may still commit; called just before the commit.

    Raises:
        InputError: the handler has ended the transaction itself, or went on after an error that had aborted it.
        Exception: an error of the server, from a statement or a constraint checked at the commit; rolled back.
    """
    try:
        if not await opened.write(row):
            await opened.rollback()
            return Conclusion.REFUSED
        if not allowed():
            await opened.rollback()
            return Conclusion.WITHHELD
    except BaseException:
        await opened.rollback()
        raise
    return await opened.commit()


class AttemptTransaction:
    """The transaction of one attempt, at most one.

    Args:
        success: the outcome if the attempt succeeds; it identifies the attempt.
    """

    def __init__(self, source: TransactionSource, success: FinalRow) -> None:
        self._source = source
        self._name = attempt_name(success)
        self._open: OpenTransaction | None = None
        self._begun = False
        self._block_ended = False
        self.unavailable: JobMasterError | None = None
        """Why no transaction could be opened."""
        self.trace_context: Callable[[], TraceContext | None] = _no_trace
        """The current span, which messages of the outbox carry."""

    @property
    def pending(self) -> bool:
        """True while it is open, to be concluded together with the outcome."""
        return self._open is not None

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """See ``JobContext.transaction``."""
        if self._begun:
            raise InputError(
                "ctx.transaction() can be used once in an attempt",
                hint="put what belongs together into one block; connection.transaction() inside it is a savepoint",
            )
        self._begun = True
        try:
            self._open = await self._source.begin(self._name)
        except JobMasterError as error:
            self.unavailable = error
            raise
        try:
            yield self._open.connection
        except BaseException:
            await self.rollback()
            raise
        self._block_ended = True

    async def conclude(self, row: FinalRow, allowed: Callable[[], bool]) -> Conclusion:
        """Write the outcome and commit; see the function ``conclude``."""
        opened, self._open = self._open, None
        assert opened is not None, "there is a transaction to conclude"
        if not self._block_ended:
            await opened.rollback()
            raise InputError(
                "the handler returned while ctx.transaction() was still open in another task",
                hint="await that task before returning",
            )
        return await conclude(opened, row, allowed)

    async def send_message(self, handler: str, arguments: dict[str, object], key: str | None) -> None:
        """See ``Outbox.send``."""
        if self._open is None or self._block_ended:
            raise InputError(
                "a message of the outbox belongs to a transaction, and none is open",
                hint="call ctx.outbox.send() inside `async with ctx.transaction()`",
            )
        options = {} if key is None else {"idempotency_key": key}
        if (context := self.trace_context()) is not None:
            options |= {name: value for name, value in context._asdict().items() if value is not None}
        await self._open.submit(handler, encode_args(arguments).decode(), encode_value(options, "options").decode())

    @property
    def confirmation(self) -> str:
        """Not for transactional handlers: the commit is the confirmation."""
        raise _not_confirmable()

    async def confirm(self, result: object = None) -> None:
        """Not for transactional handlers: the commit is the confirmation."""
        raise _not_confirmable()

    async def rollback(self) -> None:
        """Roll back; no-op when no transaction is open."""
        opened, self._open = self._open, None
        if opened is not None:
            await opened.rollback()


def _no_trace() -> None:
    return None


def _not_confirmable() -> InputError:
    return InputError(
        "a transactional handler is done when it returns, and cannot be confirmed",
        hint='declare confirm="explicit" instead',
    )
