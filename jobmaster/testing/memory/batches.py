"""Batches of a cluster in memory. Nothing dies here, so a batch ends when the next job is taken, or when it is read."""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from jobmaster.clock import new_id
from jobmaster.model import ids
from jobmaster.model.flow.batch import (
    AS_BEFORE,
    BatchCounts,
    BatchState,
    BatchView,
    Callback,
    ConcludedBatch,
    EndReason,
    FoundBatch,
    NewBatch,
    Position,
    range_of,
)
from jobmaster.model.flow.batch import Occasion as On
from jobmaster.model.job import JobState, NewJob

if TYPE_CHECKING:
    from jobmaster.testing.memory.rows import MemoryRows

_FOLLOWS = {
    BatchState.SUCCEEDED: (On.COMPLETE, On.SUCCESS),
    BatchState.FAILED: (On.COMPLETE, On.FAILURE),
    BatchState.CANCELLED: (On.COMPLETE,),
}


class MemoryBatches:
    """``jobmaster.ports.ClientBatches`` over rows in memory."""

    def __init__(self, rows: MemoryRows) -> None:
        self._rows = rows
        self._views: dict[bytes, BatchView] = {}
        self._callbacks: dict[bytes, tuple[Callback, ...]] = {}
        self._given: dict[bytes, Position] = {}
        self._firsts: dict[bytes, dict[bytes, int]] = {}

    def end_full(self) -> None:
        """End the batches all of whose jobs have ended."""
        with self._rows.lock:
            going_on = [view.id_bytes for view in self._views.values() if not view.state.final]
            for batch_id in reversed(going_on):  # what is inside is younger
                self._end(batch_id)

    def _of(self, batch_id: bytes) -> BatchView | None:
        return next((view for view in self._views.values() if range_of(batch_id) in view.ranges), None)

    def _states(self, view: BatchView) -> Counter[JobState]:
        ranges = set(view.ranges)
        return Counter(job.state for job in self._rows.jobs.values() if range_of(job.entry.id) in ranges)

    def _end(self, batch_id: bytes) -> ConcludedBatch | None:
        view = self._views[batch_id]
        inner = [each for each in self._views.values() if each.parent_bytes == batch_id]
        counts = _counts(self._states(view))
        if (
            view.state is not BatchState.CLOSED
            or counts.ended < view.size
            or counts.unfinished
            or any(not each.state.final for each in inner)
        ):
            return None
        state = BatchState.CANCELLED if view.cancel_requested else BatchState.FAILED
        every = all(each.state is BatchState.SUCCEEDED for each in inner)
        if not view.cancel_requested and counts.succeeded == counts.ended and every:
            state = BatchState.SUCCEEDED
        fired: dict[str, str | None] = dict(view.callbacks)
        groups = set()
        for callback in self._callbacks[batch_id]:
            if callback.occasion in _FOLLOWS[state]:
                job_id = new_id()
                self._rows.insert(NewJob(job_id, *callback[1:], 0))
                fired[callback.occasion] = ids.text(job_id)
                groups.add((callback.lane, callback.priority))
        self._views[batch_id] = msgspec.structs.replace(
            view, state=state, counts=counts, ended_us=self._rows.clock.wall_us(), callbacks=fired
        )
        return ConcludedBatch(batch_id, state, view.name, view.parent_bytes, frozenset(groups))

    # ------------------------------------------------------------ ports

    async def tally(self, agent_id: bytes, ended: Mapping[bytes, int]) -> None:
        """Nothing is noted: a look at the jobs costs nothing here."""

    async def full(self, ids: Sequence[bytes]) -> builtins.list[bytes]:
        """Every one of these may have ended."""
        with self._rows.lock:
            return [view.id_bytes for each in ids if (view := self._of(each)) is not None and not view.state.final]

    async def conclude(self, batch_id: bytes, reason: EndReason | None = None) -> ConcludedBatch | None:
        """End a batch whose jobs have all ended."""
        with self._rows.lock:
            return self._end(batch_id)

    async def cancel_page(self, batch_id: bytes, after: bytes | None, limit: int) -> tuple[bytes | None, int]:
        """Cancel every job of a batch."""
        with self._rows.lock:
            view = self._views[batch_id]
            jobs = [job for job in self._rows.jobs.values() if range_of(job.entry.id) in view.ranges]
            for job in jobs:
                if not job.state.final:
                    job.cancel()
            return None, len(jobs)

    async def open(self, batch: NewBatch) -> bool:
        """A new batch."""
        with self._rows.lock:
            parent = None if batch.parent is None else self._of(batch.parent)
            if batch.parent is not None and (parent is None or parent.state.final or parent.cancel_requested):
                return False
            if batch.key is not None and any(view.key == batch.key for view in self._views.values()):
                return False
            now_us = self._rows.clock.wall_us()
            self._firsts[batch.id] = {batch.id: 0}
            self._views[batch.id] = BatchView(
                id_bytes=batch.id,
                key=batch.key,
                name=batch.name,
                state=BatchState.OPEN,
                description=batch.description,
                parent_bytes=None if parent is None else parent.id_bytes,
                retry_of_bytes=batch.retry_of,
                created_us=now_us,
                expires_us=None if batch.timeout_seconds is None else now_us + int(batch.timeout_seconds * 1e6),
                ranges=(batch.id,),
                callbacks={str(each.occasion): None for each in batch.callbacks},
            )
            self._callbacks[batch.id] = batch.callbacks
            return True

    async def take_over(
        self, key: str, producer: bytes, silent_seconds: float, abandon_seconds: float
    ) -> FoundBatch | None:
        """The batch of a key. Producers of a test do not die, so each may go on with it at once."""
        with self._rows.lock:
            view = next((view for view in self._views.values() if view.key == key), None)
            if view is None:
                return None
            given = self._given.get(view.id_bytes, Position(0, 0, 0))
            ranges = tuple(self._firsts[view.id_bytes].items())
            is_open = view.state is BatchState.OPEN
            settled, stored, reserved = (number or 0 for number in given)
            return FoundBatch(
                view.id_bytes, view.state, view.cancel_requested, is_open, settled, stored, reserved, ranges
            )

    async def add_range(self, batch_id: bytes, lowest: bytes, first: int = 0, producer: bytes | None = None) -> bool:
        """Another range."""
        with self._rows.lock:
            view = self._views[batch_id]
            if view.state is BatchState.OPEN:
                self._views[batch_id] = msgspec.structs.replace(view, ranges=(*view.ranges, lowest))
                self._firsts[batch_id][lowest] = first
            return view.state is BatchState.OPEN

    async def touch(
        self, batch_id: bytes, abandon_seconds: float, producer: bytes | None = None, position: Position = AS_BEFORE
    ) -> bool | None:
        """Nothing is abandoned here."""
        view = self._views[batch_id]
        before = self._given.get(batch_id, Position(0, 0, 0))
        self._given[batch_id] = Position(*(b if n is None else n for b, n in zip(before, position, strict=True)))
        return view.cancel_requested if view.state is BatchState.OPEN else None

    async def close(self, batch_id: bytes, size: int, producer: bytes | None = None, given: int = 0) -> bool:
        """OPEN -> CLOSED."""
        with self._rows.lock:
            view = self._views[batch_id]
            if view.state is not BatchState.OPEN:
                return False
            self._given[batch_id] = Position(given, size, given)
            self._views[batch_id] = msgspec.structs.replace(
                view, state=BatchState.CLOSED, size=size, closed_us=self._rows.clock.wall_us()
            )
            return True

    async def request_cancel(self, batch_id: bytes, actor: str) -> builtins.list[bytes]:
        """A batch, and what is inside it."""
        with self._rows.lock:
            if self._views[batch_id].state.final:
                return []
            covered = [batch_id]
            for each in covered:
                covered += [
                    view.id_bytes for view in self._views.values() if view.parent_bytes == each and not view.state.final
                ]
            for each in covered:
                self._views[each] = msgspec.structs.replace(self._views[each], cancel_requested=True)
            return covered

    async def progress(self, batch_id: bytes) -> BatchCounts:
        """Count the jobs."""
        with self._rows.lock:
            return _counts(self._states(self._views[batch_id]))

    async def list(
        self,
        batch_id: bytes | None = None,
        *,
        states: Sequence[BatchState] = (),
        name: str | None = None,
        before: bytes | None = None,
        limit: int = 100,
        retry_of: bytes | None = None,
        key: str | None = None,
    ) -> builtins.list[BatchView]:
        """Batches, the newest first."""
        with self._rows.lock:
            self.end_full()
            one = None if batch_id is None else self._of(batch_id)
            chosen: Iterable[BatchView] = self._views.values() if batch_id is None else [one] if one else []
            found = [
                view
                for view in sorted(chosen, key=lambda view: view.id_bytes, reverse=True)
                if (not states or view.state in states)
                and (name is None or view.name == name)
                and (before is None or view.id_bytes < before)
                and (retry_of is None or view.retry_of_bytes == retry_of)
                and (key is None or view.key == key)
            ][:limit]
            views = list(self._views.values())
            return [
                msgspec.structs.replace(
                    view,
                    tallied=_counts(self._states(view)).ended,
                    nested=sum(each.parent_bytes == view.id_bytes for each in views),
                )
                for view in found
            ]

    async def callbacks(self, batch_id: bytes) -> tuple[Callback, ...]:
        """The callbacks of a batch."""
        return self._callbacks[batch_id]


def _counts(states: Counter[JobState]) -> BatchCounts:
    held = states[JobState.HELD] + states[JobState.WAITING]
    in_flight = states[JobState.ASSIGNED] + states[JobState.PROCESSING]
    return BatchCounts(
        succeeded=states[JobState.SUCCEEDED],
        failed=states[JobState.FAILED],
        cancelled=states[JobState.CANCELLED],
        expired=states[JobState.EXPIRED],
        held=held,
        in_flight=in_flight,
        unfinished=held + in_flight,
    )
