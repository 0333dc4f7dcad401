"""Twins of the statements by which jobs of lost buckets come back: pages, sweeps, orphans, expiry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.simulation.master.job_statements import Ids, JobStatements, is_at_most_once
from tests.simulation.master.statements_base import demand_values
from tests.simulation.master.tables import IN_FLIGHT, BucketRow, JobRow, Record, Refusal, Snapshot


class RescueStatements(JobStatements):
    """Twins of ``rescue/rescue_page``, ``rescue/sweep``, ``maintenance/return_orphans``, ``maintenance/expire_held``."""

    def rescue_rescue_page(
        self, old: Snapshot, bucket_id: bytes, epoch: int, owner: bytes, priority: int, lane: str, claimed: bool,
        max_rescues: int, lost_error: bytes, low: bytes, high: bytes, *columns_and_error: Any,
    ) -> list[Record]:  # fmt: skip
        *columns, abandoned = columns_and_error
        demand_values("rescue/rescue_page", columns[2], columns[6])
        if self._draining(old, bucket_id, epoch, owner) is None:
            return [Record(bucket_ok=False, accepted=[], cancelled=[], failed=[])]
        accepted: Ids = []
        cancelled: Ids = []
        failed: Ids = []
        for job_id, token, handler, args, due_us, headers, attempt, rescues in zip(*columns, strict=True):
            row = self.tables.jobs.get(job_id)
            if row is None:
                if self._vanishes(job_id):
                    continue
                counts = rescues + (1 if claimed and not rescues else 0)
                lost = counts > rescues and counts >= max_rescues
                self._insert(
                    job_id, "FAILED" if lost else "HELD", priority, lane, handler, token if lost else 2,
                    bucket_id if lost else None, epoch - 1 if lost else None, due_us or self.now_us(), args, headers,
                    attempt, counts, error=lost_error if lost else None,
                )  # fmt: skip
                accepted.append(job_id)
                failed += [job_id] if lost else []
                if lost:
                    self._note_end(job_id)
                self.hits["rescue: job without a row"] += 1
            elif self._may_rescue(row, bucket_id):
                becomes = self._rescue(row, bucket_id, max_rescues, (lost_error, abandoned), claimed=claimed)
                accepted.append(job_id)
                if becomes == "CANCELLED":
                    cancelled.append(job_id)
                elif becomes == "FAILED":
                    failed.append(job_id)
                self.hits["rescue: job with a row"] += 1
            else:
                self.hits["rescue: entry refused by its row"] += 1
        return [Record(bucket_ok=True, accepted=accepted, cancelled=cancelled, failed=failed)]

    def _may_rescue(self, row: JobRow, bucket_id: bytes) -> bool:
        if "rescuer's recheck" in self.without:
            return True
        return row.bucket_id == bucket_id and row.state in IN_FLIGHT

    def rescue_sweep(
        self, old: Snapshot, bucket_id: bytes, epoch: int, owner: bytes, limit: int, max_rescues: int, *errors: bytes
    ) -> list[Record]:
        bucket = self._draining(old, bucket_id, epoch, owner)
        if bucket is None or "sweep" in self.without:
            return [Record(moved=0, rescued=0, failed=0)]
        self.tables.buckets[bucket_id] = self.tables.buckets[bucket_id]._replace(former_owner=None)
        mine = self._in_flight_of(bucket_id)[:limit]
        running = [row for row in mine if row.state == "PROCESSING"]
        became = [self._rescue(row, bucket_id, max_rescues, errors, claimed=False) for row in mine]
        # `moved` returns the state before, as the statement does.
        self.hits["rescue: row swept"] += len(mine)
        return [Record(moved=len(mine), rescued=len(running), failed=became.count("FAILED"))]

    def _in_flight_of(self, bucket_id: bytes) -> list[JobRow]:
        rows = (row for row in self.tables.jobs.values() if row.bucket_id == bucket_id and row.state in IN_FLIGHT)
        return sorted(rows, key=lambda row: row.id)

    def _rescue(
        self, row: JobRow, bucket_id: bytes, max_rescues: int, errors: Sequence[bytes], *, claimed: bool
    ) -> str:
        """One row that its dead owner cannot finish; the state it gets."""
        counts = (claimed and not row.rescues) or row.state == "PROCESSING"
        rescues = row.rescues + (1 if counts else 0)
        due = row.due_us or self.now_us()
        if row.cancel_requested:
            self._put(row._replace(state="CANCELLED", rescues=rescues, due_us=due, expires_us=None, error=None,
                                   changed_us=self.now_us()))  # fmt: skip
            return "CANCELLED"
        once = row.state == "PROCESSING" and is_at_most_once(row.headers)
        if once or (counts and rescues >= max_rescues):
            error = errors[1] if once else errors[0]
            self._put(row._replace(state="FAILED", rescues=rescues, due_us=due, expires_us=None, error=error,
                                   changed_us=self.now_us()))  # fmt: skip
            self.hits["rescue: abandoned" if once else "rescue: too many"] += 1
            return "FAILED"
        if row.state == "PROCESSING":
            self.tables.attempts.setdefault((row.id, row.token, bucket_id, row.bucket_epoch), Refusal("lost", 0))
        held = row._replace(rescues=rescues)
        return self._give_back(held, row.token + 1, "rescue")

    def buckets_close_drained(
        self, old: Snapshot, bucket_id: bytes, epoch: int, owner: bytes, moved: int, rescued: int
    ) -> list[Record]:
        bucket = self.tables.buckets.get(bucket_id)
        if bucket is None or (bucket.epoch, bucket.owner) != (epoch, owner):
            return [Record(closed=False, superseded=True)]
        closed = bucket.state == "READY_TO_DELETE"
        if bucket.state == "DRAINING" and not self._in_flight_of(bucket_id):
            self._move(bucket, "READY_TO_DELETE", owner, "drained")
            closed = True
        return [Record(closed=closed, superseded=bucket.state not in ("DRAINING", "READY_TO_DELETE"))]

    def _move(self, bucket: BucketRow, state: str, actor: bytes, reason: str) -> None:
        self.tables.buckets[bucket.id] = bucket._replace(state=state, changed_us=self.now_us())
        self._tell(bucket.id, bucket.state, state, bucket.epoch, actor, reason)

    # ------------------------------------------------------------ the leader's

    def onboarding_bucket_rows(self, old: Snapshot, bucket_id: bytes, after: bytes | None, limit: int) -> list[Record]:
        rows = [row for row in self._in_flight_of(bucket_id) if after is None or row.id > after][:limit]
        return [
            Record(id=row.id, token=row.token, bucket_epoch=row.bucket_epoch, state=row.state,
                   changed_at=self.moment(row.changed_us))
            for row in rows
        ]  # fmt: skip

    def onboarding_give_back(
        self, old: Snapshot, bucket_id: bytes, ids: Ids, tokens: list[int], epochs: list[int], *low_high_error: bytes
    ) -> list[Record]:
        moved = 0
        for job_id, token, epoch in zip(ids, tokens, epochs, strict=True):
            row = self.tables.jobs.get(job_id)
            if row is not None and self._is_mine(row, token, bucket_id, epoch):
                self._return(row, low_high_error[-1], "anti-entropy")
                moved += 1
        return [Record(moved=moved)]

    def _return(self, row: JobRow, abandoned: bytes, by: str) -> None:
        """A row without a copy: given back, or abandoned when it has begun and must not begin again."""
        if row.state == "PROCESSING" and not row.cancel_requested:
            if is_at_most_once(row.headers):
                self._put(row._replace(state="FAILED", due_us=row.due_us or self.now_us(), expires_us=None,
                                       error=abandoned, changed_us=self.now_us()))  # fmt: skip
                return
            key = (row.id, row.token, row.bucket_id, row.bucket_epoch)
            self.tables.attempts.setdefault(key, Refusal("lost", 0))
            self.audit.limits.given_back.add((row.id, row.token))
        self._give_back(row, row.token + 1, by)

    def maintenance_return_orphans(
        self, old: Snapshot, grace_seconds: float, limit: int, max_rescues: int, *errors: bytes
    ) -> list[Record]:
        before = self.now_us() - int(grace_seconds * 1e6)
        moved = rescued = failed = 0
        for row in sorted(self.tables.jobs.values(), key=lambda row: row.id):
            if row.state not in IN_FLIGHT or row.changed_us >= before or moved >= limit:
                continue
            assert row.bucket_id is not None
            # The bucket is read without a lock: as it was when the statement began.
            bucket = old.buckets.get(row.bucket_id)
            if bucket is not None and (
                bucket.state in ("LOST", "DRAINING")
                or (bucket.epoch == row.bucket_epoch and bucket.state in ("ACTIVE", "COMPLETING", "FROZEN"))
            ):
                continue
            running = row.state == "PROCESSING"
            counted = row._replace(rescues=row.rescues + (1 if running else 0))
            too_often = running and counted.rescues >= max_rescues and not is_at_most_once(row.headers)
            if too_often and not row.cancel_requested:
                self._put(counted._replace(state="FAILED", due_us=row.due_us or self.now_us(), expires_us=None,
                                           error=errors[0], changed_us=self.now_us()))  # fmt: skip
                self.hits["orphan: too many"] += 1
            else:
                self._return(counted, errors[1], "orphan")
            moved += 1
            rescued += running
            failed += self.tables.jobs[row.id].state == "FAILED"
        return [Record(moved=moved, rescued=rescued, failed=failed)]

    def maintenance_forget_agents(self, old: Snapshot, days: float, limit: int) -> list[Record]:
        return [Record(forgotten=0)]  # no history is that long

    maintenance_forget_keys = maintenance_forget_quarantine = maintenance_forget_agents
    maintenance_forget_operator_log = maintenance_forget_bucket_events = maintenance_forget_put_off = (
        maintenance_forget_agents
    )
    maintenance_forget_locks = maintenance_forget_bulk = maintenance_forget_unique_keys = maintenance_forget_agents
    maintenance_forget_permits = maintenance_forget_agents
    maintenance_forget_schedule_fires = maintenance_forget_agents
    maintenance_forget_workflows = maintenance_forget_agents
    maintenance_forget_run_progress = maintenance_forget_job_logs = maintenance_forget_agents

    def reports_unserved(self, old: Snapshot, overdue_seconds: float, look: int) -> list[Record]:
        return []  # all agents of a history are alike, so nothing is put off either

    def unserved_end_help(self, old: Snapshot) -> list[Record]:
        return []  # no agent was asked

    def unserved_put_back(self, old: Snapshot, limit: int) -> list[Record]:
        return [Record(moved=0)]

    def unserved_put_off_paused(self, old: Snapshot, overdue: float, away: float, limit: int) -> list[Record]:
        return [Record(moved=0)]  # no job of a history is overdue for so long

    def maintenance_expire_held(self, old: Snapshot, limit: int, error: bytes) -> list[Record]:
        now = self.now_us()
        late = [row for row in self.tables.jobs.values()
                if row.state == "HELD" and row.expires_us is not None and row.expires_us <= now][:limit]  # fmt: skip
        for row in late:
            self._put(row._replace(state="EXPIRED", error=error, changed_us=now))
        return [Record(expired=len(late))]

    def maintenance_expire_unconfirmed(self, old: Snapshot, limit: int, error: bytes) -> list[Record]:
        return [Record(expired=0)]  # no handler here waits for a confirmation

    def maintenance_reassign_late(self, old: Snapshot, limit: int, most: int, too_slow: bytes) -> list[Record]:
        now = self.now_us()
        late = [row for row in self.tables.jobs.values()
                if row.state == "PROCESSING" and row.expires_us is not None and row.expires_us <= now
                and ("one start" in self.without or not is_at_most_once(row.headers))]  # fmt: skip
        late = sorted(late, key=lambda row: row.expires_us or 0)[:limit]
        failed = 0
        for row in late:
            times = sum(key[0] == row.id and line.outcome == "reassigned" for key, line in self.tables.attempts.items())
            if times >= most and "most reassigns" not in self.without and not row.cancel_requested:
                self._put(row._replace(state="FAILED", due_us=row.due_us or now, expires_us=None, error=too_slow,
                                       changed_us=now))  # fmt: skip
                self.hits["too slow"] += 1
                failed += 1
                continue
            if not row.cancel_requested:
                key = (row.id, row.token, row.bucket_id, row.bucket_epoch)
                self.tables.attempts.setdefault(key, Refusal("reassigned", 0))
                self.audit.reassigned(row.id)
            self.hits["reassigned"] += 1
            self._give_back(row, row.token + 1, "reassign")
        return [Record(moved=len(late), failed=failed)]

    def maintenance_ensure_partitions(self, old: Snapshot, span: str | None, ahead_days: int) -> list[Record]:
        return []

    def jobs_id_range(self, old: Snapshot) -> list[Record]:
        return [Record(floor=self.tables.floor, ceiling=b"\xff" * 16)]
