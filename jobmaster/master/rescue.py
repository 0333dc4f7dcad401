"""Writes of a rescuer, each under its own epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobmaster.master.buckets import bucket_of
from jobmaster.master.driver import resent_writes
from jobmaster.master.driver.batches import Batch, BatchAnswer, columns, execute_batch, ids_of
from jobmaster.master.driver.connection import StatementRunner
from jobmaster.master.driver.job_errors import ABANDONED, AGENT_LOST
from jobmaster.model.bucket import Bucket
from jobmaster.model.errors import Refused
from jobmaster.model.ids import Fence
from jobmaster.model.job import Entry
from jobmaster.ports import Swept, Written

_COUNT_MAX = 2**31 - 1
_Copy = tuple[bytes, int, str, bytes, int, bytes, int, int]
"""An ``Entry`` as the columns of the statement."""


class Rescue:
    """``jobmaster.ports.Rescue`` on PostgreSQL."""

    def __init__(self, data: StatementRunner, control: StatementRunner) -> None:
        self._data = data
        self._control = control

    async def rescue_page(
        self,
        fence: Fence,
        entries: Sequence[Entry],
        lane: str,
        priority: int,
        *,
        claimed: bool,
        max_rescues: int,
    ) -> Written:
        """Entries found in the store -> HELD with token + 1 (no row: token 2); rows that are final, HELD or of another
        bucket stay as they are (*refused*)."""

        async def send(some: Sequence[_Copy]) -> BatchAnswer:
            ids = ids_of(some)
            limits = (claimed, count_of(max_rescues), AGENT_LOST, min(ids), max(ids))
            return await execute_batch(
                self._data, "rescue/rescue_page", *fence, priority, lane, *limits, *columns(some), ABANDONED, ids=ids
            )

        def classify(_: _Copy, found: resent_writes.CurrentRow) -> resent_writes.RowResult:
            mine = found.in_flight and found.bucket_id == fence.bucket_id
            return resent_writes.RowResult.AGAIN if mine else resent_writes.RowResult.REFUSED

        copies = [(e.id, e.token, e.handler, e.args, e.due_us, e.headers, e.attempt, e.rescues) for e in entries]
        return await Batch(self._data, "rescue/rescue_page", send, classify, bucket_id=fence.bucket_id).write(copies)

    async def sweep(self, fence: Fence, limit: int, *, max_rescues: int) -> Swept:
        """In-flight rows that still name the bucket -> HELD; none also when the bucket is another's."""
        rows = await self._data.write("rescue/sweep", *fence, limit, count_of(max_rescues), AGENT_LOST, ABANDONED)
        return Swept(*rows[0])

    async def take_lost(
        self, agent_id: bytes, stores: Sequence[str], floor_epochs: Mapping[bytes, int]
    ) -> Bucket | None:
        """One LOST bucket of the given stores -> DRAINING with epoch ``max(master, floor) + 1``, owned by the agent.

        First the database sessions of dead owners are ended, because a frozen one may hold locks on the rows to move.
        Where the server does not allow that, their locks end with ``idle_in_transaction_session_timeout``.
        """
        try:
            await self._control.write("rescue/end_dead_sessions")
        except Refused:
            pass
        rows = await self._control.write(
            "buckets/take_lost", agent_id, list(stores), list(floor_epochs), list(floor_epochs.values())
        )
        return bucket_of(rows[0]) if rows else None

    async def close_drained(self, fence: Fence, moved: int, rescued: int) -> bool:
        """DRAINING -> READY_TO_DELETE when no in-flight row names the bucket. False: sweep again, or, when there is
        nothing to sweep, another rescuer has the bucket."""
        rows = await self._data.write("buckets/close_drained", *fence, moved, rescued)
        return bool(rows[0]["closed"])


def count_of(rescues_max: int) -> int:
    """A configured limit as the statements take it: one beyond their range would make every row look unfit."""
    return min(rescues_max, _COUNT_MAX)
