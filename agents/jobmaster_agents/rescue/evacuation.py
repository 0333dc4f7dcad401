"""One lost bucket, taken over and emptied: fence, pages, close, sweep, retire. No loop and no choice of its own.

Every step may be repeated by this or another rescuer, and every step writes to the master first and removes from the store
second. The two refusals are kept apart (``ports.Written``): an entry refused *by its row* was settled before and is removed
from the store; a page refused *by the bucket's lock* means that the bucket is another's now: nothing is removed, the memory
of it is forgotten. What the master can never store, or nobody can read, goes to its quarantine first and leaves the store
second, like everything else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Protocol, TypeVar

from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.errors import InputError, Refused, ValueRefused
from jobmaster.model.ids import ID_BYTES, AgentId, BucketId, Fence
from jobmaster.model.job import Entry, FinalRow, HoldRow
from jobmaster.ports import Page, Swept, Unfit, Word, Written
from jobmaster.rules.batching import Size
from jobmaster_agents.outcomes.batch_write import RowRefusals, StoredRowsWrite
from jobmaster_agents.outcomes.kept_codec import ID_AT, decode_rows

_SPILLED = "spilled"
_CLAIMED = "claimed"

_Row = TypeVar("_Row", Entry, FinalRow, HoldRow)


class EvacuationMaster(Protocol):
    """What a drain needs of the master."""

    async def move_bucket(self, bucket_id: bytes, epoch: int, owner: bytes, to: BucketState, reason: str) -> bool: ...

    async def rescue_page(
        self, fence: Fence, entries: Sequence[Entry], lane: str, priority: int, *, claimed: bool, max_rescues: int
    ) -> Written: ...

    async def sweep(self, fence: Fence, limit: int, *, max_rescues: int) -> Swept: ...

    async def close_drained(self, fence: Fence, moved: int, rescued: int) -> bool: ...

    async def record_final(self, rows: Sequence[FinalRow]) -> Written: ...

    async def hold(self, fence: Fence, rows: Sequence[HoldRow]) -> Written: ...

    async def quarantine(self, bucket_id: bytes, entries: Sequence[Unfit]) -> None: ...


class EvacuationStore(Protocol):
    """What a drain needs of the bucket's store."""

    async def fence(self, fence: Fence) -> tuple[Word, int]: ...

    async def read_page(self, fence: Fence, limit: int, bytes_max: int) -> Page: ...

    async def remove_page(self, fence: Fence, page: Page) -> Word: ...

    async def close_if_empty(self, fence: Fence) -> Word: ...


class EvacuationEnd(StrEnum):
    """How one try to drain a bucket ended."""

    DRAINED = "drained"
    SUPERSEDED = "superseded"
    """The master says that another agent has it: forget it."""
    OUTRUN = "outrun"
    """The store holds a higher epoch than the master gave: take it again above that one."""
    VOUCHED = "vouched"
    """Fenced, but its store has vouched for the former owner, who may be starting jobs, for ``wait_seconds`` more."""
    NOT_YET = "not_yet"
    """The store refused a step, or a row is still locked: begin again from the fence, which tells why."""
    STOPPED = "stopped"
    """This agent is not sound any more."""


class Evacuation:
    """A bucket in DRAINING, owned by this agent, and what was done with it so far.

    Args:
        sound: False once this agent may not commit any more.
        on_aside: told of entries that were committed to the quarantine; they leave the store next.
    """

    def __init__(
        self,
        bucket: Bucket,
        master: EvacuationMaster,
        store: EvacuationStore,
        sound: Callable[[], bool],
        *,
        page_jobs: int,
        max_rescues: int,
        on_aside: Callable[[Sequence[Unfit]], None] = lambda _: None,
    ) -> None:
        self.bucket = bucket
        self.fence = Fence(BucketId(bucket.id), bucket.epoch, AgentId(bucket.owner))
        self.moved = 0
        self.rescued = 0
        self.failed = 0
        self.refused = 0
        self.swept = 0
        self.store_epoch = 0
        self.wait_seconds = 0.0
        self._unfit: list[Unfit] = []
        self._on_aside = on_aside
        self._master = master
        self._store = store
        self._sound = sound
        self._page_jobs = page_jobs
        self._size = Size(page_jobs)
        self._max_rescues = max_rescues

    async def run(self) -> EvacuationEnd:
        """Go as far as possible; whatever is raised (``Unavailable``...) leaves the bucket resumable.

        Raises:
            CodeError: the master's answer does not account for every entry of a page.
        """
        if not self._sound():
            return EvacuationEnd.STOPPED
        word, number = await self._store.fence(self.fence)
        if word is Word.VOUCHED:
            self.wait_seconds = number / 1e6
            return EvacuationEnd.VOUCHED
        self.store_epoch = number
        if word is Word.FENCED:
            return EvacuationEnd.OUTRUN
        if word is not Word.OK:
            return EvacuationEnd.NOT_YET
        while True:
            if (end := await self._move_pages()) is not None:
                return end
            word = await self._store.close_if_empty(self.fence)
            if word is Word.OK:
                break
            if word is not Word.NOT_EMPTY:
                return EvacuationEnd.NOT_YET
        return await self._close()

    async def sweep_rows(self) -> int:
        """Rows that still name an older epoch -> HELD. Also alone, when the store is gone for good."""
        moved = 0
        while self._sound() and (count := await self._sweep_once()):
            moved += count
        return moved

    async def _sweep_once(self) -> int:
        swept = await self._master.sweep(self.fence, self._page_jobs, max_rescues=self._max_rescues)
        self.moved += swept.moved
        self.rescued += swept.rescued
        self.failed += swept.failed
        self.swept += swept.moved
        return swept.moved

    async def _close(self) -> EvacuationEnd:
        while self._sound():
            await self.sweep_rows()
            if await self._master.close_drained(self.fence, self.moved, self.rescued):
                return EvacuationEnd.DRAINED
            if not await self._sweep_once():
                # Nothing to sweep and yet not closable: a row is locked by somebody, or the bucket is not ours any more.
                return EvacuationEnd.NOT_YET
        return EvacuationEnd.STOPPED

    async def _move_pages(self) -> EvacuationEnd | None:
        """Move page after page; ``None`` when the store says that nothing is left."""
        while True:
            if not self._sound():
                return EvacuationEnd.STOPPED
            page = await self._store.read_page(self.fence, self._size.rows, self._size.bytes)
            if page.word is not Word.OK:
                return EvacuationEnd.NOT_YET
            if not page.kind:
                return None
            self._unfit = []
            if page.kind == _SPILLED:
                await self._apply_spilled(page.raw)
            elif not await self._move(page):
                return EvacuationEnd.SUPERSEDED
            await self._put_aside()
            if await self._store.remove_page(self.fence, page) is not Word.OK:
                return EvacuationEnd.NOT_YET

    async def _move(self, page: Page) -> bool:
        """Entries -> HELD under our epoch. False: refused by the bucket's lock."""
        claimed = page.kind == _CLAIMED

        async def send(entries: Sequence[Entry]) -> Written:
            written = await self._master.rescue_page(
                self.fence,
                entries,
                self.bucket.lane,
                self.bucket.priority,
                claimed=claimed,
                max_rescues=self._max_rescues,
            )
            self.failed += len(written.failed)
            if claimed:  # of those that were rescued before only the started ones count, and their rows tell which
                self.rescued += sum(not entry.rescues for entry in entries if entry.id in written.accepted)
            return written

        return await self._write(page.kind, list(zip(page.entries, page.raw, strict=True)), send)

    async def _apply_spilled(self, raw: Sequence[bytes]) -> None:
        """Outcomes that were ready before their owner died, each under its own identity (no bucket lock)."""
        kept = decode_rows(raw)
        for encoded, error in kept.unreadable:
            self._note_unfit(encoded[ID_AT], _SPILLED, encoded, f"it cannot be read: {error}")
        await self._write(_SPILLED, kept.finals, self._master.record_final)
        for fence, rows in kept.holds.items():

            async def hold(some: Sequence[HoldRow], fence: Fence = fence) -> Written:
                return await self._master.hold(fence, some)

            await self._write(_SPILLED, rows, hold)

    async def _write(
        self,
        kind: str,
        pairs: Sequence[tuple[_Row, bytes]],
        send: Callable[[Sequence[_Row]], Awaitable[Written]],
    ) -> bool:
        """Send rows, in halves where the master refuses, so that nobody waits for an unfit neighbour. What it refuses alone
        for its values is noted, to be put aside. False: refused by the bucket's lock.

        Raises:
            Refused, InputError: the last refusal for another reason, which may be over tomorrow, when all that can be moved
                is.
        """
        refusals = RowRefusals()

        def on_written(written: Written) -> None:
            self.moved += len(written.accepted)
            self.refused += len(written.refused) + len(written.quarantined)

        async def on_refused(pair: tuple[_Row, bytes], error: Refused | InputError) -> bool:
            if isinstance(error, ValueRefused):
                self._note_unfit(pair[0].id, kind, pair[1], error.message)
                return True
            return refusals.add(error)

        batches: StoredRowsWrite[_Row] = StoredRowsWrite(self._size)
        if await batches.write(pairs, send, on_written, on_refused) is not None:
            return False
        if refusals.last is not None:
            raise refusals.last
        return True

    def _note_unfit(self, job_id: bytes, kind: str, raw: bytes, why: str) -> None:
        self._unfit.append(Unfit(job_id[:ID_BYTES].ljust(ID_BYTES, b"\0"), kind, raw, why))

    async def _put_aside(self) -> None:
        """What no table takes goes to the master's quarantine: it is kept whole, and the bucket is no longer held up by it.
        While the master does not take it there, it stays where it is."""
        if self._unfit:
            await self._master.quarantine(self.fence.bucket_id, self._unfit)
            self._on_aside(self._unfit)
