"""Batches: their ranges of ids, the count of their jobs, and their end."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence

from jobmaster.clock import new_id
from jobmaster.master.driver.connection import Row, StatementRunner
from jobmaster.model import ids
from jobmaster.model.flow.batch import (
    AS_BEFORE,
    BatchCounts,
    BatchState,
    BatchView,
    Callback,
    ConcludedBatch,
    DueBatch,
    EndReason,
    FoundBatch,
    NewBatch,
    Occasion,
    Position,
)


class Batches:
    """``jobmaster.ports.Batches`` on PostgreSQL."""

    def __init__(self, data: StatementRunner, control: StatementRunner) -> None:
        self._data = data
        self._control = control

    # ------------------------------------------------------------ agents

    async def tally(self, agent_id: bytes, ended: Mapping[bytes, int]) -> None:
        """Add numbers of ended jobs by range."""
        await self._data.write("batches/tally", agent_id, list(ended), list(ended.values()))

    async def full(self, ids: Sequence[bytes]) -> builtins.list[bytes]:
        """Of the batches of these ranges: those whose jobs have all ended, by the tallies."""
        return [row["batch"] for row in await self._data.read("batches/full", list(ids))]

    async def conclude(self, batch_id: bytes, reason: EndReason | None = None) -> ConcludedBatch | None:
        """End a batch whose jobs have all ended, or for a reason; ``None``: it goes on, or had ended."""
        callbacks = (new_id(), new_id())
        rows = await self._data.write("batches/conclude", batch_id, str(reason or ""), *callbacks)
        if not rows:
            return None
        state, name, parent, lanes, priorities = rows[0]
        groups = frozenset(zip(lanes, priorities, strict=True))
        return ConcludedBatch(batch_id, BatchState(state), name, parent, groups)

    # ------------------------------------------------------------ the leader

    async def due(self, limit: int, lost_seconds: float) -> builtins.list[DueBatch]:
        """Batches that are to be looked at."""
        return [
            DueBatch(row[0], BatchState(row[1]), *row[2:])
            for row in map(tuple, await self._control.read("batches/due", limit, lost_seconds))
        ]

    async def take_notes(self, agent_id: bytes, limit: int) -> tuple[builtins.list[bytes], int]:
        """Add ended jobs that no agent has told of to the tallies of this one."""
        rows = await self._data.write("batches/take_notes", agent_id, limit)
        return [row["lo"] for row in rows], sum(row["jobs"] for row in rows)

    async def postpone(self, batch_id: bytes, seconds: float) -> None:
        """Look at a batch again after this time."""
        await self._control.write("batches/postpone", batch_id, seconds)

    async def cancel_page(self, batch_id: bytes, after: bytes | None, limit: int) -> tuple[bytes | None, int]:
        """Cancel jobs of a batch with a cancel request, one page of them."""
        last_id, jobs = (await self._data.write("batches/cancel_page", batch_id, after, limit))[0]
        return last_id, jobs

    # ------------------------------------------------------------ producers and people

    async def open(self, batch: NewBatch) -> bool:
        """A new batch with one range; False: it exists, or its parent has ended."""
        each = batch.callbacks
        columns = (
            [str(one.occasion) for one in each], [one.priority for one in each], [one.lane for one in each],
            [one.handler for one in each], [one.args for one in each], [one.headers for one in each],
        )  # fmt: skip
        given = (
            batch.id, batch.parent, batch.retry_of, batch.name, batch.description, batch.timeout_seconds,
            batch.abandon_seconds,
        )  # fmt: skip
        return bool(await self._data.write("batches/open", *given, *columns, batch.key, batch.producer))

    async def take_over(
        self, key: str, producer: bytes, silent_seconds: float, abandon_seconds: float
    ) -> FoundBatch | None:
        """The batch of a key, which this producer fills from now on if no other one does; ``None``: there is none."""
        rows = await self._data.write("batches/take_over", key, producer, silent_seconds, abandon_seconds)
        if not rows:
            return None
        row = rows[0]
        return FoundBatch(
            row["id"],
            BatchState(row["state"]),
            row["cancel_requested"],
            row["taken"],
            row["settled"],
            row["stored"],
            row["reserved"],
            tuple(zip(row["ranges"], row["firsts"], strict=True)),
        )

    async def add_range(self, batch_id: bytes, lowest: bytes, first: int = 0, producer: bytes | None = None) -> bool:
        """Another range for an OPEN batch; False: it is not OPEN, another producer fills it, or the range is taken."""
        return bool(await self._data.write("batches/add_range", batch_id, lowest, first, producer))

    async def touch(
        self, batch_id: bytes, abandon_seconds: float, producer: bytes | None = None, position: Position = AS_BEFORE
    ) -> bool | None:
        """The producer is alive: whether the batch has a cancel request, ``None``: it is not OPEN, or not this one's."""
        rows = await self._control.write("batches/touch", batch_id, abandon_seconds, producer, *position)
        return bool(rows[0]["cancel_requested"]) if rows else None

    async def close(self, batch_id: bytes, size: int, producer: bytes | None = None, given: int = 0) -> bool:
        """OPEN -> CLOSED; False: it was not OPEN, or another producer fills it."""
        return bool(await self._data.write("batches/close", batch_id, size, producer, given))

    async def request_cancel(self, batch_id: bytes, actor: str) -> builtins.list[bytes]:
        """Request the cancellation of a batch and those inside it; the batches, none when it has ended."""
        return [row["batch"] for row in await self._control.write("batches/request_cancel", batch_id, actor)]

    async def progress(self, batch_id: bytes) -> BatchCounts:
        """Count the jobs of a batch."""
        row = (await self._data.read("batches/progress", batch_id))[0]
        return BatchCounts(
            succeeded=row["succeeded"],
            failed=row["failed"],
            cancelled=row["cancelled"],
            expired=row["expired"],
            held=row["held"],
            in_flight=row["in_flight"],
            unfinished=row["held"] + row["in_flight"],
        )

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
        rows = await self._data.read(
            "batches/list", batch_id, list(map(str, states)), name, before, limit, retry_of, key
        )
        return list(map(_view, rows))

    async def callbacks(self, batch_id: bytes) -> tuple[Callback, ...]:
        """The callbacks of a batch."""
        rows = await self._data.read("batches/callbacks", batch_id)
        return tuple(Callback(Occasion(row[0]), *row[1:]) for row in map(tuple, rows))


def _view(row: Row) -> BatchView:
    state = BatchState(row["state"])
    counts = None
    if state.final:
        counts = BatchCounts(
            succeeded=row["succeeded"],
            failed=row["failed"],
            cancelled=row["cancelled"],
            expired=row["expired"],
            unfinished=row["unfinished"],
            missing=row["missing"],
        )
    fired = zip(row["callbacks"], row["callback_jobs"], strict=True)
    return BatchView(
        id_bytes=row["id"],
        name=row["name"],
        key=row["key"],
        state=state,
        description=row["description"],
        size=row["size"],
        nested=row["nested"],
        reason=row["reason"],
        cancel_requested=row["cancel_requested"],
        parent_bytes=row["parent"],
        retry_of_bytes=row["retry_of"],
        created_us=row["created_us"],
        closed_us=row["closed_us"],
        ended_us=row["ended_us"],
        expires_us=row["expires_us"],
        counts=counts,
        tallied=row["tallied"],
        ranges=tuple(row["ranges"]),
        callbacks={occasion: None if job_id is None else ids.text(job_id) for occasion, job_id in fired},
    )
