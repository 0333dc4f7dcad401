"""What a living owner still holds of a bucket that its store has lost: it goes to the master, and runs again.

A store that was emptied, or has come back older, may have lost entries of which its owner has a copy in memory: waiting for
a slot, running, or ended and on their way to the master. Without a row they would be gone. What the owner may still write
about them is what it may always write: an outcome, or the job given back, under the copy's own identity. Neither needs the
bucket (rule A). Where there is no row, the job has not ended (below the watermark nothing is written), and a row appears;
where there is one, it bears this identity or it refuses. So it does not matter whether a rescuer is at work, has come first,
or finds an older copy in the store afterwards: whoever is second is refused by the row.

Only copies that may have no row: a row that is known is swept by the rescuer. So a job that must not be started twice is not
started a second time: it is started by an accepted row, and of such a copy the row is known.

Owns these copies from the loss of their bucket on; must never touch a key of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Protocol, TypeVar

from jobmaster.codec import encode_entry
from jobmaster.model.errors import InputError, Refused, Unavailable, ValueRefused
from jobmaster.model.ids import Fence
from jobmaster.model.job import Entry, FinalRow, HoldRow
from jobmaster.ports import Unfit, Written
from jobmaster_agents.holdings import Holding
from jobmaster_agents.portions import LiveJob

_BATCH_ROWS = 500
_KIND = "memory"

_Row = TypeVar("_Row", FinalRow, HoldRow)


class SalvageMaster(Protocol):
    """What takes them."""

    async def record_final(self, rows: Sequence[FinalRow]) -> Written: ...

    async def hold(self, fence: Fence, rows: Sequence[HoldRow]) -> Written: ...

    async def quarantine(self, bucket_id: bytes, entries: Sequence[Unfit]) -> None: ...


class Salvaging:
    """Copies of lost buckets, until they are in the master or it is known that they need not be.

    Args:
        may_commit: False once the lease forbids it; asked before every write.
    """

    def __init__(self, master: SalvageMaster, may_commit: Callable[[], bool]) -> None:
        self._master = master
        self._may_commit = may_commit
        self._left: dict[Holding, dict[Fence, list[tuple[Entry, FinalRow | HoldRow]]]] = {}

    def keep(self, holding: Holding, dropped: Iterable[LiveJob]) -> int:
        """A bucket is lost with these live copies; how many of them only its store had beside this process."""
        mine: dict[Fence, list[tuple[Entry, FinalRow | HoldRow]]] = {}
        alone = 0
        for job in dropped:
            if job.entry.token > 1 or job.row_says is not None:
                continue
            alone += 1
            mine.setdefault(job.portion.holding.fence, []).append((job.entry, job.row or _given_back(job)))
        if mine:
            self._left[holding] = mine
        return alone

    def drop(self, holding: Holding) -> None:
        """Another has the bucket, with all that lies in its store."""
        self._left.pop(holding, None)

    async def write(self, holding: Holding) -> int:
        """Write what is left of a bucket; how many of its copies are settled now. Again after a failure: the same once more.

        Raises:
            Unavailable: the master does not answer, or may not be written to now.
            Refused: it refuses all of them, for no value of theirs.
        """
        settled = 0
        for fence, pairs in self._left.get(holding, {}).items():

            async def hold(rows: Sequence[HoldRow], fence: Fence = fence) -> Written:
                return await self._master.hold(fence, rows)

            finals = [(entry, row) for entry, row in pairs if isinstance(row, FinalRow)]
            holds = [(entry, row) for entry, row in pairs if isinstance(row, HoldRow)]
            settled += await self._write(fence, finals, self._master.record_final)
            settled += await self._write(fence, holds, hold)
        self._left.pop(holding, None)
        return settled

    async def _write(
        self,
        fence: Fence,
        pairs: Sequence[tuple[Entry, _Row]],
        send: Callable[[Sequence[_Row]], Coroutine[object, object, Written]],
    ) -> int:
        """In halves where the master refuses; what it refuses alone for its values goes to its quarantine."""
        todo = [pairs[first : first + _BATCH_ROWS] for first in range(0, len(pairs), _BATCH_ROWS)]
        settled = 0
        while todo:
            some = todo.pop()
            if not self._may_commit():
                raise Unavailable("the lease does not allow to commit")
            try:
                settled += len((await send([row for _, row in some])).settled)
            except (Refused, InputError) as error:
                if len(some) > 1:
                    half = len(some) // 2
                    todo += (some[half:], some[:half])
                elif isinstance(error, ValueRefused):
                    entry = some[0][0]
                    unfit = Unfit(entry.id, _KIND, encode_entry(entry), error.message)
                    await self._master.quarantine(fence.bucket_id, [unfit])
                    settled += 1
                else:
                    raise
        return settled


def _given_back(job: LiveJob) -> HoldRow:
    entry, holding = job.entry, job.portion.holding
    return HoldRow(
        entry.id, holding.priority, holding.lane, entry.handler, entry.token, entry.attempt, entry.rescues, entry.due_us,
        entry.args, entry.headers, None, 0,
    )  # fmt: skip
