"""One way to send many rows to the master: in batches of bounded bytes, halved where they fail, every row accounted for.

Two things make a batch smaller. *Time*: the master did not finish it, and would not finish the same batch the next time
either; it is never sent again at the same size, and those after it are as small (``rules.batching.Size``). *A value* that the
master refuses: the batch is halved until the one row stands alone, so that it holds up nobody; what becomes of that row is
its sender's to say.

Owns the order and the size of what is sent. An answer that leaves out a row is a defect: whoever sent it would erase what
nobody has settled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from jobmaster.model.errors import CodeError, InputError, JobMasterError, Refused, Unavailable
from jobmaster.ports import Written
from jobmaster.rules.batching import Size, cut, halves

_T = TypeVar("_T")


async def _at_once(_: JobMasterError) -> None:
    """No pause."""


class Halving(Generic[_T]):
    """Sends rows of one kind.

    Args:
        size: how large a batch may be; shared by all that send to the same server.
        id_of: the job a row is about.
        bytes_of: payload of a row.
        pause: awaited before a part of what failed is sent; a refusal of everything must not become a storm of small batches.
    """

    def __init__(
        self,
        size: Size,
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
        took: Callable[[Sequence[_T], Written], None],
        alone: Callable[[_T, Refused | InputError], Awaitable[bool]],
    ) -> Written | None:
        """Send all rows; the answer of the bucket's lock when that refused a batch, after which no other is sent.

        Args:
            send: one batch. Raises ``Unavailable`` with ``timed_out`` for one that may be too large.
            took: told of each batch that the master has settled.
            alone: told of each row that the master refuses alone; False: no more is to be sent.

        Raises:
            Unavailable: as ``send`` raises it; a time-out only of a single row.
            CodeError: an answer does not name every row.
        """
        todo = [rows] if rows else []
        while todo:
            some = todo.pop()
            sizes = list(map(self._bytes_of, some))
            if len(batches := cut(some, sizes, self._size.rows, self._size.bytes)) > 1:
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
                elif not await alone(some[0], error):
                    return None
            else:
                self._size.succeeded()
                if not written.bucket_ok:
                    return written
                self._demand_account(some, written)
                took(some, written)
        return None

    def _demand_account(self, some: Sequence[_T], written: Written) -> None:
        sent = set(map(self._id_of, some))
        if missing := sent - written.settled:
            raise CodeError(f"the master's answer to a write leaves out {len(missing)} of {len(sent)} jobs")
