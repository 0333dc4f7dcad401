"""Twins of the statements that change jobs which wait."""

from __future__ import annotations

from typing import Any

from tests.simulation.master.job_statements import JobStatements, expires_of
from tests.simulation.master.tables import JobRow, Record, Snapshot


class ChangeStatements(JobStatements):
    """Twins of ``changes``. (Nothing is put off in a history, so a job's due time is always its own.)"""

    def changes_change_held(
        self,
        old: Snapshot,
        job_id: bytes,
        due_us: int | None,
        priority: int | None,
        lane: str | None,
        actor: str,
        action: str,
    ) -> list[Record]:
        row = self.tables.jobs.get(job_id)
        if row is None or row.state != "HELD" or (row.expires_us is not None and due_us and due_us >= row.expires_us):
            return []
        return self._changed(row, due_us, priority, lane)

    def changes_assign_copy(self, old: Snapshot, bucket_id: bytes, epoch: int, *columns: Any) -> list[Record]:
        if not self._lock(old, bucket_id, epoch, None, ("ACTIVE",)):
            return [Record(bucket_ok=False, accepted=[])]
        accepted = []
        for job_id, priority, lane, handler, token, attempt, rescues, due_us, args, headers in zip(
            *columns, strict=True
        ):
            if job_id in self.tables.jobs or self._vanishes(job_id):
                continue
            self._insert(job_id, "ASSIGNED", priority, lane, handler, token, bucket_id, epoch, due_us or None, args, headers,
                         attempt, rescues)  # fmt: skip
            self.audit.bound(self.tables, "assign_copy", bucket_id, epoch, None)
            accepted.append(job_id)
        return [Record(bucket_ok=True, accepted=accepted)]

    def changes_hold_recalled(
        self, old: Snapshot, job_id: bytes, token: int, bucket_id: bytes, epoch: int, due_us: int | None,
        priority: int | None, lane: str | None, actor: str, action: str,
    ) -> list[Record]:  # fmt: skip
        row = self.tables.jobs.get(job_id)
        mine = row is not None and (row.identity == (token, bucket_id, epoch) or "identity of a recall" in self.without)
        if row is None or row.state != "ASSIGNED" or not mine:
            return []
        self.audit.accepted("hold_recalled", row, token, bucket_id, epoch)
        if row.cancel_requested:
            self._put(row._replace(state="CANCELLED", expires_us=None, changed_us=self.now_us()))
            return [_answer(self.tables.jobs[job_id], self.moment(row.due_us))]
        held = row._replace(state="HELD", bucket_id=None, bucket_epoch=None, expires_us=expires_of(row.headers))
        return self._changed(held, due_us, priority, lane)

    def _changed(self, row: JobRow, due_us: int | None, priority: int | None, lane: str | None) -> list[Record]:
        due = row.due_us or self.now_us()
        if due_us is not None:
            due = due_us or min(due, self.now_us())
        self._put(
            row._replace(due_us=due, priority=priority or row.priority, lane=lane or row.lane, changed_us=self.now_us())
        )
        return [_answer(self.tables.jobs[row.id], self.moment(due))]


def _answer(row: JobRow, due_at: tuple[int] | None) -> Record:
    return Record(state=row.state, due_at=due_at, priority=row.priority, lane=row.lane, handler=row.handler)
