"""Send a batch and account for each of its rows: accepted, cancelled, refused or quarantined."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

import asyncpg
import msgspec

from jobmaster.master.driver import errors
from jobmaster.master.driver.connection import StatementRunner
from jobmaster.master.driver.resent_writes import CurrentRow, RowResult
from jobmaster.master.driver.statements import sql
from jobmaster.model.errors import OutcomeUnknown, Unavailable
from jobmaster.ports import Written

T = TypeVar("T", bound=tuple[Any, ...])

_TRIES = 4
_AHEAD_DAYS = 7
_PACK = msgspec.msgpack.Encoder()
_ID = itemgetter(0)
NOTHING: frozenset[bytes] = frozenset()


class NoPartition(Exception):
    """Some id of a batch lies outside every partition; nothing was written."""


def columns(rows: Iterable[tuple[Any, ...]]) -> list[list[Any]]:
    """Rows -> one list per column."""
    return [list(column) for column in zip(*rows, strict=True)]


def ids_of(rows: Iterable[tuple[Any, ...]]) -> list[bytes]:
    """First column."""
    return list(map(_ID, rows))


def portions(rows: Sequence[T]) -> list[Sequence[T]]:
    """The rows in portions without duplicate ids: one statement cannot touch a row twice."""
    if len(set(map(_ID, rows))) == len(rows):
        return [rows]
    first: dict[bytes, T] = {}
    rest: list[T] = []
    for row in rows:
        if row[0] in first:
            rest.append(row)
        else:
            first[row[0]] = row
    return [list(first.values()), *portions(rest)]


class BatchAnswer(NamedTuple):
    """Answer of one batch statement; the names are its columns."""

    accepted: Sequence[bytes]
    bucket_ok: bool = True
    cancelled: Sequence[bytes] = ()
    failed: Sequence[bytes] = ()


class Batch(Generic[T]):
    """One kind of batch statement: how it is sent, and how a row that was not accepted is classified.

    Args:
        what: name for messages.
        send: the statement; raises ``NoPartition`` when an id has no partition.
        classify: class of one row that was not accepted, from its present row (``jobs/peek``).
        cancelled_is_accepted: whether a cancelled row counts as written (it is final then).
        rowless: what a missing row means: ``True`` when the statement would have made one.
    """

    def __init__(
        self,
        statements: StatementRunner,
        what: str,
        send: Callable[[Sequence[T]], Awaitable[BatchAnswer]],
        classify: Callable[[T, CurrentRow], RowResult],
        *,
        bucket_id: bytes | None = None,
        cancelled_is_accepted: bool = True,
        rowless: bool = True,
    ) -> None:
        self._statements = statements
        self._what = what
        self._send = send
        self._classify = classify
        self._bucket_id = bucket_id
        self._cancelled_is_accepted = cancelled_is_accepted
        self._rowless = rowless
        self._accepted: set[bytes] = set()
        self._cancelled: set[bytes] = set()
        self._failed: set[bytes] = set()
        self._refused: set[bytes] = set()
        self._quarantined: set[bytes] = set()
        self._written = False
        self.stale: list[T] = []
        """Rows refused because the row in the master has other values."""

    async def write(self, rows: Sequence[T]) -> Written:
        """Send all rows; every id is in exactly one set of the answer (``cancelled`` may be part of ``accepted``)."""
        try:
            for portion in portions(rows) if rows else ():
                if not await self._write(portion):
                    return Written(False, NOTHING)
        except OutcomeUnknown:
            raise
        except Unavailable as error:
            if not self._written:
                raise
            # A later step failed; what the statement wrote stays.
            message = f"{self._what}: {error.message}"
            raise OutcomeUnknown(message, id_bytes=ids_of(rows), timed_out=error.timed_out) from error
        if self._cancelled_is_accepted:
            self._accepted |= self._cancelled
        return Written(
            True,
            frozenset(self._accepted),
            frozenset(self._cancelled) if self._cancelled else NOTHING,
            frozenset(self._refused) if self._refused else NOTHING,
            frozenset(self._quarantined) if self._quarantined else NOTHING,
            frozenset(self._failed) if self._failed else NOTHING,
        )

    async def _write(self, rows: Sequence[T]) -> bool:
        for _ in range(_TRIES):
            try:
                answer = await self._send(rows)
            except NoPartition:
                rows = await self._within_partitions(rows)
                if not rows:
                    return True
                continue
            if not answer.bucket_ok:
                return False
            self._written = True
            self._accepted.update(answer.accepted)
            self._cancelled.update(answer.cancelled)
            self._failed.update(answer.failed)
            if len(answer.accepted) == len(rows):
                return True
            done = set(answer.accepted)
            rows = await self._classify_rest([row for row in rows if row[0] not in done])
            if not rows:
                return True
        raise OutcomeUnknown(f"{self._what}: {len(rows)} rows kept changing under the writer", id_bytes=ids_of(rows))

    async def _classify_rest(self, rows: Sequence[T]) -> list[T]:
        """Settle what was not accepted; returns the rows to send again."""
        ids = ids_of(rows)
        found = {
            row["id"]: CurrentRow(*row) for row in await self._statements.read("jobs/peek", ids, min(ids), max(ids))
        }
        again: list[T] = []
        rowless: list[T] = []
        for row in rows:
            if (there := found.get(row[0])) is None:
                rowless.append(row)
                continue
            match self._classify(row, there):
                case RowResult.ACCEPTED:
                    self._accepted.add(row[0])
                case RowResult.CANCELLED:
                    self._cancelled.add(row[0])
                case RowResult.REFUSED:
                    self._refused.add(row[0])
                    self.stale.append(row)
                case RowResult.AGAIN:
                    again.append(row)
        if rowless and not self._rowless:
            self._refused.update(ids_of(rowless))
        elif rowless:
            again += await self._below_floor(rowless)
        return again

    async def _below_floor(self, rows: Sequence[T]) -> list[T]:
        """Rows that vanished: those below the floor go to quarantine, the others are sent again."""
        floor = (await self._statements.read("jobs/id_range"))[0]["floor"]
        await self._quarantine([row for row in rows if row[0] < floor], "below the watermark")
        return [row for row in rows if row[0] >= floor]

    async def _within_partitions(self, rows: Sequence[T]) -> list[T]:
        """Make the partitions that should exist; ids beyond those go to quarantine."""
        await self._statements.write("maintenance/ensure_partitions", None, _AHEAD_DAYS)
        ceiling = (await self._statements.read("jobs/id_range"))[0]["ceiling"]
        await self._quarantine([row for row in rows if row[0] >= ceiling], "outside every partition")
        return [row for row in rows if row[0] < ceiling]

    async def _quarantine(self, rows: Sequence[T], reason: str) -> None:
        if not rows:
            return
        ids = ids_of(rows)
        entries = [_PACK.encode(row) for row in rows]
        await self._statements.write("jobs/quarantine", ids, self._bucket_id, [reason] * len(ids), entries, ids=ids)
        self._quarantined.update(ids)


async def execute_batch(statements: StatementRunner, name: str, *args: Any, ids: Sequence[bytes]) -> BatchAnswer:
    """One batch statement; ``NoPartition`` when an id lies outside every partition."""
    return BatchAnswer(**(await run_batch(statements, name, *args, ids=ids))[0])


async def run_batch(statements: StatementRunner, name: str, *args: Any, ids: Sequence[bytes]) -> Any:
    """Rows of one batch statement; ``NoPartition`` when an id lies outside every partition."""
    text = sql(name)
    try:
        return await statements.run(
            name, lambda connection: connection.fetch(text, *args), ids=ids, raw=(asyncpg.CheckViolationError,)
        )
    except asyncpg.CheckViolationError as error:
        if error.constraint_name is None:  # a violated CHECK has a name, a missing partition has none
            raise NoPartition from error
        raise errors.calling(error, name, writes=True, ids=ids) from error
