"""Evacuation of one lost bucket: fence, pages, close, sweep, retire. ``rescuer`` decides which bucket and when.

Every step may be repeated by this or another rescuer. Every step writes to the master first and removes from the store
second. The two refusals differ (``ports.Written``): an entry refused *by its row* was settled before and is removed from the
store; a page refused *by the bucket's lock* means that another agent owns the bucket now, so nothing is removed and the
evacuation ends. An entry that the master can never store, or that cannot be decoded, goes to the quarantine first and leaves
the store second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import TypeVar

from jobmaster.codec import ID_AT
from jobmaster.model.bucket import Bucket
from jobmaster.model.errors import InputError, Refused, ValueRefused
from jobmaster.model.ids import ID_BYTES, AgentId, BucketId, Fence
from jobmaster.model.job import Entry, FinalRow, HoldRow
from jobmaster.ports import EvacuationMaster, EvacuationStore, Page, ReplyStatus, UnstorableEntry, Written
from jobmaster.rules.batching import BatchSize
from jobmaster_agents.outcomes.batch_write import RowRefusals, StoredRowsWrite
from jobmaster_agents.outcomes.kept_codec import decode_rows

_KEPT = "kept"
_CLAIMED = "claimed"

_Row = TypeVar("_Row", Entry, FinalRow, HoldRow)


class EvacuationEnd(StrEnum):
    """How one attempt to evacuate a bucket ended."""

    DRAINED = "drained"
    SUPERSEDED = "superseded"
    """Another agent owns the bucket now."""
    EPOCH_BEHIND = "outrun"
    """The store holds a higher epoch than the master gave: the bucket must be taken again above that one."""
    STORE_LEASE = "store_lease"
    """Fenced, but the store lease of the former owner, which may still start jobs, lasts for ``wait_seconds`` more."""
    NOT_YET = "not_yet"
    """The store refused a step, or a row is still locked: the next attempt begins with the fence."""
    STOPPED = "stopped"
    """This agent may not write any more."""


class Evacuation:
    """A bucket in DRAINING that this agent owns, and the counts of what was done so far.

    Args:
        may_write: returns False when this agent may not commit any more.
        page_jobs: greatest number of entries in one page.
        max_rescues: a job that was rescued more often fails.
        on_quarantined: called with entries that were committed to the quarantine, before they leave the store.
    """

    def __init__(
        self,
        bucket: Bucket,
        master: EvacuationMaster,
        store: EvacuationStore,
        may_write: Callable[[], bool],
        *,
        page_jobs: int,
        max_rescues: int,
        on_quarantined: Callable[[Sequence[UnstorableEntry]], None] = lambda _: None,
        on_ended: Callable[[Sequence[FinalRow]], None] = lambda _: None,
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
        self._unfit: list[UnstorableEntry] = []
        self._on_quarantined = on_quarantined
        self._on_ended = on_ended
        self._master = master
        self._store = store
        self._may_write = may_write
        self._page_jobs = page_jobs
        self._size = BatchSize(page_jobs)
        self._max_rescues = max_rescues

    async def run(self) -> EvacuationEnd:
        """Go as far as possible. The evacuation can be resumed after every error (``Unavailable``...).

        Raises:
            CodeError: the master's answer does not account for every entry of a page.
        """
        if not self._may_write():
            return EvacuationEnd.STOPPED
        status, number = await self._store.fence(self.fence)
        if status is ReplyStatus.LEASED:
            self.wait_seconds = number / 1e6
            return EvacuationEnd.STORE_LEASE
        self.store_epoch = number
        if status is ReplyStatus.FENCED:
            return EvacuationEnd.EPOCH_BEHIND
        if status is not ReplyStatus.OK:
            return EvacuationEnd.NOT_YET
        while True:
            if (end := await self._move_pages()) is not None:
                return end
            status = await self._store.close_if_empty(self.fence)
            if status is ReplyStatus.OK:
                break
            if status is not ReplyStatus.NOT_EMPTY:
                return EvacuationEnd.NOT_YET
        return await self._close()

    async def sweep_rows(self) -> int:
        """Move rows that name an older epoch to HELD; the number of rows. Used alone when the store is gone for good."""
        moved = 0
        while self._may_write() and (count := await self._sweep_once()):
            moved += count
        return moved

    async def _sweep_once(self) -> int:
        swept = await self._master.rescue.sweep(self.fence, self._page_jobs, max_rescues=self._max_rescues)
        self.moved += swept.moved
        self.rescued += swept.rescued
        self.failed += swept.failed
        self.swept += swept.moved
        return swept.moved

    async def _close(self) -> EvacuationEnd:
        while self._may_write():
            await self.sweep_rows()
            if await self._master.rescue.close_drained(self.fence, self.moved, self.rescued):
                return EvacuationEnd.DRAINED
            if not await self._sweep_once():
                # Nothing to sweep and yet not closable: a row is locked, or this agent lost the bucket.
                return EvacuationEnd.NOT_YET
        return EvacuationEnd.STOPPED

    async def _move_pages(self) -> EvacuationEnd | None:
        """Move page after page; ``None`` when the store returns an empty page."""
        while True:
            if not self._may_write():
                return EvacuationEnd.STOPPED
            page = await self._store.read_page(self.fence, self._size.rows, self._size.bytes)
            if page.status is not ReplyStatus.OK:
                return EvacuationEnd.NOT_YET
            if not page.kind:
                return None
            self._unfit = []
            if page.kind == _KEPT:
                await self._apply_kept(page.raw)
            elif not await self._move(page):
                return EvacuationEnd.SUPERSEDED
            await self._quarantine_unfit()
            if await self._store.remove_page(self.fence, page) is not ReplyStatus.OK:
                return EvacuationEnd.NOT_YET

    async def _move(self, page: Page) -> bool:
        """Entries -> HELD under this agent's epoch. False: refused by the bucket's lock."""
        claimed = page.kind == _CLAIMED

        async def send(entries: Sequence[Entry]) -> Written:
            written = await self._master.rescue.rescue_page(
                self.fence,
                entries,
                self.bucket.lane,
                self.bucket.priority,
                claimed=claimed,
                max_rescues=self._max_rescues,
            )
            self.failed += len(written.failed)
            if claimed:  # a job that was rescued before counts again only if it was started, which its row shows
                self.rescued += sum(not entry.rescues for entry in entries if entry.id in written.accepted)
            return written

        return await self._write(page.kind, list(zip(page.entries, page.raw, strict=True)), send)

    async def _apply_kept(self, raw: Sequence[bytes]) -> None:
        """Write outcomes that the dead owner kept in the bucket, each under its own identity (no bucket lock)."""
        kept = decode_rows(raw)
        for encoded, error in kept.unreadable:
            self._note_unfit(encoded[ID_AT], _KEPT, encoded, f"it cannot be read: {error}")

        async def record(rows: Sequence[FinalRow]) -> Written:
            written = await self._master.outcomes.record_final(rows)
            self._on_ended([row for row in rows if row.id in written.accepted])
            return written

        await self._write(_KEPT, kept.finals, record)
        for fence, rows in kept.holds.items():

            async def hold(some: Sequence[HoldRow], fence: Fence = fence) -> Written:
                return await self._master.outcomes.hold(fence, some)

            await self._write(_KEPT, rows, hold)

    async def _write(
        self,
        kind: str,
        pairs: Sequence[tuple[_Row, bytes]],
        send: Callable[[Sequence[_Row]], Awaitable[Written]],
    ) -> bool:
        """Write rows, in halves where the master refuses, so that no row waits for an unfit neighbour. A row that is refused
        alone for its values is noted for the quarantine. False: refused by the bucket's lock.

        Raises:
            Refused, InputError: the last refusal for a reason that may pass, after everything else was moved.
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
        self._unfit.append(UnstorableEntry(job_id[:ID_BYTES].ljust(ID_BYTES, b"\0"), kind, raw, why))

    async def _quarantine_unfit(self) -> None:
        """Write entries that no table takes to the master's quarantine, whole. They no longer block the bucket. Until the
        master has them there, they stay in the store."""
        if self._unfit:
            await self._master.outcomes.quarantine(self.fence.bucket_id, self._unfit)
            self._on_quarantined(self._unfit)
