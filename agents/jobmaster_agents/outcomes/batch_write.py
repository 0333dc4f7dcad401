"""Writes rows to the master in batches: bounded in bytes, halved where they fail, every row accounted for.

Used for outcomes (``writer``), for outcomes that were kept in the store (``kept_replay``), for a bucket that is evacuated
(``rescue.evacuation``) and for the memory of a bucket that its store has lost (``buckets.memory_recovery``).

Two things make a batch smaller. *A time-out*: the master did not finish the batch and would not finish it the next time.
It is never sent again at the same size, and the batches after it are as small (``rules.batching.BatchSize``). *A refused
value*: the batch is halved until the refused row is alone, so that it delays no other row; the caller decides what happens
to it.

Owns the order and the size of what is sent. An answer that leaves out a row is a defect (``CodeError``): the caller would
erase a job that is not settled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar

from jobmaster.model import ids
from jobmaster.model.errors import CodeError, InputError, JobMasterError, Refused, Unavailable
from jobmaster.model.job import Entry, FinalRow, HoldRow
from jobmaster.ports import CopyOutcomes, Written
from jobmaster.rules.batching import BatchSize, halves, split_batches

_REFUSALS_MAX = 8
"""Rows refused for another reason than a value, after which no other is sent."""

_T = TypeVar("_T")
_Row = TypeVar("_Row", Entry, FinalRow, HoldRow)


async def copied(master: CopyOutcomes, rows: Sequence[FinalRow]) -> bool:
    """Write outcomes by COPY, the fastest way for rows that are expected to be new.

    Returns: False when a row existed, a value was refused or the answer was lost. Then the guarded statement is the next
        step: it recognises rows that this COPY may have written.

    Raises:
        Unavailable: a time-out of several rows; the same number would time out again.
    """
    try:
        return await master.copy_final(rows)
    except (Unavailable, Refused, InputError) as error:
        if isinstance(error, Unavailable) and error.timed_out and len(rows) > 1:
            raise
        return False


def demand_account(job_ids: Iterable[bytes], written: Written) -> None:
    """Raise ``CodeError`` if the master's answer leaves out one of the jobs that were sent."""
    sent = set(job_ids)
    if missing := sent - written.settled:
        first = ids.text(min(missing))
        raise CodeError(
            f"the master's answer to a write leaves out {len(missing)} of {len(sent)} jobs, such as {first}"
        )


class RowRefusals:
    """Rows refused alone, and not for a value of theirs: a right or a table is missing, which an operator may mend."""

    def __init__(self) -> None:
        self.last: Refused | InputError | None = None
        self._count = 0

    def add(self, error: Refused | InputError) -> bool:
        """Count one; False when there are so many that the master is to blame: a refusal of everything must not become a
        storm of single rows."""
        self.last = error
        self._count += 1
        return self._count < _REFUSALS_MAX


async def _at_once(_: JobMasterError) -> None:
    """No pause."""


class BatchWrite(Generic[_T]):
    """Writes rows of one kind.

    Args:
        size: how large a batch may be; shared by all that send to the same server.
        id_of: the job of a row.
        bytes_of: payload of a row.
        pause: awaited before a part of what failed is sent; a refusal of everything must not become a storm of small batches.
    """

    def __init__(
        self,
        size: BatchSize,
        id_of: Callable[[_T], bytes],
        bytes_of: Callable[[_T], int],
        pause: Callable[[JobMasterError], Awaitable[None]] = _at_once,
    ) -> None:
        self._size = size
        self._id_of = id_of
        self._bytes_of = bytes_of
        self._pause = pause

    async def write(
        self,
        rows: Sequence[_T],
        send: Callable[[Sequence[_T]], Awaitable[Written]],
        on_written: Callable[[Sequence[_T], Written], None],
        on_refused: Callable[[_T, Refused | InputError], Awaitable[bool]],
    ) -> Written | None:
        """Send all rows; the answer of the bucket's lock when that refused a batch, after which no other is sent.

        Args:
            send: sends one batch. Raises ``Unavailable`` with ``timed_out`` for one that may be too large.
            on_written: called with each batch that the master has settled.
            on_refused: called with each row that the master refuses alone; False: send no more.

        Raises:
            Unavailable: as ``send`` raises it; a time-out only of a single row.
            CodeError: an answer does not name every row.
        """
        todo = [rows] if rows else []
        while todo:
            some = todo.pop()
            sizes = list(map(self._bytes_of, some))
            if len(batches := split_batches(some, sizes, self._size.rows, self._size.bytes)) > 1:
                todo += reversed(batches)
                continue
            try:
                written = await send(some)
            except Unavailable as error:
                if not error.timed_out:
                    raise
                self._size.timed_out(len(some), sum(sizes))
                if len(some) == 1:
                    raise
                await self._pause(error)
                todo.append(some)
            except (Refused, InputError) as error:
                if len(some) > 1:
                    await self._pause(error)
                    todo += reversed(halves(some))
                elif not await on_refused(some[0], error):
                    return None
            else:
                self._size.succeeded()
                if not written.bucket_ok:
                    return written
                demand_account(map(self._id_of, some), written)
                on_written(some, written)
        return None

    async def write_all(
        self,
        rows: Sequence[_T],
        send: Callable[[Sequence[_T]], Awaitable[Written]],
        on_refused: Callable[[_T, Refused | InputError], Awaitable[bool]],
    ) -> Written:
        """``write`` with one answer about all rows."""
        answers: list[Written] = []
        refused = await self.write(rows, send, lambda _, written: answers.append(written), on_refused)
        if refused is not None:
            answers.append(refused)
        if len(answers) == 1:
            return answers[0]

        def all_of(name: str) -> frozenset[bytes]:
            return frozenset().union(*(getattr(answer, name) for answer in answers))

        return Written(
            refused is None, all_of("accepted"), all_of("cancelled"), all_of("refused"), all_of("quarantined")
        )


class StoredRowsWrite(Generic[_Row]):
    """Writes rows that were read from a store, each with its encoded form.

    Args:
        size, pause: as in ``BatchWrite``.
    """

    def __init__(self, size: BatchSize, pause: Callable[[JobMasterError], Awaitable[None]] = _at_once) -> None:
        self._batches: BatchWrite[tuple[_Row, bytes]] = BatchWrite(size, _id_of, _bytes_of, pause)

    async def write(
        self,
        pairs: Sequence[tuple[_Row, bytes]],
        send: Callable[[Sequence[_Row]], Awaitable[Written]],
        on_written: Callable[[Written], None],
        on_refused: Callable[[tuple[_Row, bytes], Refused | InputError], Awaitable[bool]],
    ) -> Written | None:
        """As ``BatchWrite.write``; ``send`` gets the rows alone."""
        return await self._batches.write(
            pairs,
            lambda some: send([row for row, _ in some]),
            lambda _, written: on_written(written),
            on_refused,
        )


def _id_of(pair: tuple[Entry | FinalRow | HoldRow, bytes]) -> bytes:
    return pair[0].id


def _bytes_of(pair: tuple[object, bytes]) -> int:
    return len(pair[1])
