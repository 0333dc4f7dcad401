"""Changes of jobs that wait: due time, priority and lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobmaster.master.driver.batches import Batch, BatchAnswer, columns, execute_batch, ids_of
from jobmaster.master.driver.connection import Row, StatementRunner, to_us
from jobmaster.master.driver.resent_writes import exists
from jobmaster.model.ids import Identity
from jobmaster.model.job import Entry, JobState
from jobmaster.model.job_change import ChangedRow, NewValues


class Changes:
    """``jobmaster.ports.Changes`` on PostgreSQL."""

    def __init__(self, data: StatementRunner) -> None:
        self._data = data

    async def change_held(self, job_id: bytes, new: NewValues, actor: str) -> ChangedRow | None:
        """A HELD row gets the new values; ``None``: it is not HELD, or expires before it would be due."""
        rows = await self._data.write("changes/change_held", job_id, *new, actor, new.action, ids=[job_id])
        return _changed(rows)

    async def assign_copy(self, bucket_id: bytes, epoch: int, priority: int, lane: str, copy: Entry) -> bool:
        """A job without a row gets one: ASSIGNED, under the identity of its copy in an ACTIVE bucket of this epoch;
        ``False``: it has a row, or the bucket takes none."""
        row = (
            copy.id, priority, lane, copy.handler, copy.token, copy.attempt, copy.rescues, copy.due_us, copy.args,
            copy.headers,
        )  # fmt: skip

        async def send(rows: Sequence[tuple[Any, ...]]) -> BatchAnswer:
            return await execute_batch(
                self._data, "changes/assign_copy", bucket_id, epoch, *columns(rows), ids=ids_of(rows)
            )

        batch = Batch(self._data, "changes/assign_copy", send, exists, bucket_id=bucket_id)
        written = await batch.write([row])
        return copy.id in written.accepted

    async def hold_recalled(self, job_id: bytes, identity: Identity, new: NewValues, actor: str) -> ChangedRow | None:
        """An ASSIGNED row of this identity becomes HELD with the new values, or CANCELLED after a cancel request;
        ``None``: it has another identity or state."""
        values = (*identity, *new, actor, new.action)
        return _changed(await self._data.write("changes/hold_recalled", job_id, *values, ids=[job_id]))


def _changed(rows: Sequence[Row]) -> ChangedRow | None:
    if not rows:
        return None
    state, due, priority, lane, handler = rows[0]
    return ChangedRow(JobState(state), to_us(due), priority, lane, handler)
