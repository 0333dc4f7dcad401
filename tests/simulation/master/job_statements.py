"""Twins of the statements about jobs: one method per statement, named like its file, with the same parameters and columns.

Rows that a statement locks are read as they are; whatever it reads without a lock it sees as it was when it began
(``Snapshot``). ``without`` names guards that are left out on purpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobmaster.codec import decode_headers
from jobmaster.master.driver.connection import EPOCH_2000_US
from jobmaster.model.flow.tenant import tenant_of
from jobmaster.rules.batching import fitting_count
from jobmaster.rules.capabilities import lacking
from tests.simulation.master.statements_base import StatementsBase, demand_values
from tests.simulation.master.tables import FINAL, IN_FLIGHT, BucketRow, JobRow, Record, Refusal, Snapshot

Ids = list[bytes]
_NO_ENTRY = dict.fromkeys(("id", "token", "handler", "args", "due_at", "headers", "attempt", "rescues"))


def expires_of(headers: bytes) -> int | None:
    return decode_headers(headers).expires_us if b'"expires' in headers else None


def has_tag(headers: bytes, tags: Sequence[str]) -> bool:
    return b'"tags"' in headers and not set(tags).isdisjoint(decode_headers(headers).tags)


def is_at_most_once(headers: bytes) -> bool:
    return b'"at_most_once":true' in headers


class JobStatements(StatementsBase):
    """Twins of the statements about jobs."""

    # ------------------------------------------------------------ guards

    def _lock(self, old: Snapshot, bucket_id: bytes, epoch: int, owner: bytes | None, states: Sequence[str]) -> bool:
        """The bucket's row, locked: read as it is now. Without the lock it is what the snapshot shows."""
        buckets = old.buckets if "bucket lock" in self.without else self.tables.buckets
        bucket = buckets.get(bucket_id)
        return (
            bucket is not None
            and bucket.epoch == epoch
            and (owner is None or bucket.owner == owner)
            and bucket.state in states
        )

    def _is_mine(self, row: JobRow, token: int, bucket_id: bytes | None, epoch: int | None) -> bool:
        if row.state not in IN_FLIGHT:
            return False
        return "identity" in self.without or row.identity == (token, bucket_id, epoch)

    def _vanishes(self, job_id: bytes) -> bool:
        """Below the floor only what lies in the attic may be written."""
        return "watermark" not in self.without and job_id < self.tables.floor and job_id not in self.tables.jobs

    # ------------------------------------------------------------ first rows

    def intake_insert_held(self, old: Snapshot, *columns: Sequence[Any]) -> list[Record]:
        accepted: Ids = []
        for job_id, priority, lane, handler, args, headers, due_us in zip(*columns, strict=True):
            if job_id in self.tables.jobs or self._vanishes(job_id):
                continue
            self._insert(job_id, "HELD", priority, lane, handler, 1, None, None, due_us or self.now_us(), args, headers)
            accepted.append(job_id)
        return [Record(accepted=accepted)]

    def intake_insert_assigned(self, old: Snapshot, bucket_id: bytes, epoch: int, *columns: Any) -> list[Record]:
        if not self._lock(old, bucket_id, epoch, None, ("ACTIVE",)):
            return [Record(bucket_ok=False, accepted=[])]
        accepted: Ids = []
        for job_id, priority, lane, handler, args, headers, due_us in zip(*columns, strict=True):
            if job_id in self.tables.jobs or self._vanishes(job_id):
                continue
            due = due_us or None
            self._insert(job_id, "ASSIGNED", priority, lane, handler, 2, bucket_id, epoch, due, args, headers)
            self.audit.bound(self.tables, "insert_assigned", bucket_id, epoch, None)
            accepted.append(job_id)
        return [Record(bucket_ok=True, accepted=accepted)]

    def _insert(
        self, job_id: bytes, state: str, priority: int, lane: str, handler: str, token: int, bucket_id: bytes | None,
        epoch: int | None, due_us: int | None, args: bytes, headers: bytes, attempt: int = 0, rescues: int = 0,
        result: bytes | None = None, error: bytes | None = None, cancel: bool = False, late_us: int | None = None,
    ) -> None:  # fmt: skip
        expires = expires_of(headers) if state == "HELD" else late_us
        self._put(JobRow(
            job_id, state, priority, lane, handler, token, bucket_id, epoch, attempt, rescues, cancel, due_us, expires,
            self.now_us(), args, headers, result, error,
        ))  # fmt: skip

    def intake_reserve_keys(self, old: Snapshot, scope: str, keys: Any, ids: Any, digests: Any) -> list[Record]:
        for key, job_id, digest in zip(keys, ids, digests, strict=True):
            self.tables.keys.setdefault((scope, key), (job_id, digest))
        return []

    def intake_key_holders(self, old: Snapshot, scope: str, keys: Sequence[str]) -> list[Record]:
        found = [(key, self.tables.keys.get((scope, key))) for key in keys]
        return [Record(key=key, job_id=held[0], digest=held[1]) for key, held in found if held is not None]

    # ------------------------------------------------------------ outcomes

    def copy(self, records: Sequence[tuple[Any, ...]]) -> int:
        """COPY of final rows: -1 when an id has a row or comes twice, else how many were written. The first row that does not
        fit decides which error it is: rows are inserted one by one, because a default of the table is volatile."""
        ids: set[bytes] = set()
        for record in records:
            demand_values("copy_final", [record[4]], [record[8]])
            if record[0] in ids or record[0] in self.tables.jobs:
                return -1
            ids.add(record[0])
        written = 0
        for record in records:
            (job_id, state, priority, lane, handler, token, bucket_id, epoch, attempt, rescues, due, _, _, args, headers,
             result, error) = record  # fmt: skip
            if self._vanishes(job_id):
                continue
            due_us = None if due is None else due[0] + EPOCH_2000_US
            self._insert(job_id, state, priority, lane, handler, token, bucket_id, epoch, due_us, args, headers, attempt,
                         rescues, result, error)  # fmt: skip
            written += 1
        return written

    def outcomes_record_final(self, old: Snapshot, *columns: Any) -> list[Record]:
        demand_values("outcomes/record_final", columns[4], columns[8])
        accepted: Ids = []
        for (job_id, state, priority, lane, handler, token, bucket_id, epoch, attempt, rescues, due_us, _, _, args, headers,
             result, error) in zip(*columns, strict=True):  # fmt: skip
            row = self.tables.jobs.get(job_id)
            if row is None:
                if self._vanishes(job_id):
                    continue
                self._insert(job_id, state, priority, lane, handler, token, bucket_id, epoch, due_us or None, args, headers,
                             attempt, rescues, result, error)  # fmt: skip
            elif self._is_mine(row, token, bucket_id, epoch):
                self.audit.accepted("record_final", row, token, bucket_id, epoch)
                self._put(row._replace(state=state, attempt=attempt, rescues=rescues, expires_us=None,
                                       changed_us=self.now_us(), result=result, error=error))  # fmt: skip
            else:
                continue
            accepted.append(job_id)
        return [Record(accepted=accepted)]

    def outcomes_mark_refused(self, old: Snapshot, *columns: Any) -> list[Record]:
        for job_id, token, bucket_id, epoch in zip(*columns, strict=True):
            key = (job_id, token, bucket_id, epoch)
            line = self.tables.attempts.get(key)
            self.tables.attempts[key] = Refusal(line.outcome if line else "refused", line.refused + 1 if line else 1)
        return []

    def outcomes_persist(
        self, old: Snapshot, bucket_id: bytes, epoch: int, owner: bytes, *columns: Any
    ) -> list[Record]:
        demand_values("outcomes/persist", columns[4], columns[6])
        if not self._lock(old, bucket_id, epoch, owner, ("ACTIVE", "COMPLETING")):
            return [Record(bucket_ok=False, accepted=[])]
        accepted: Ids = []
        for job_id, state, priority, lane, handler, token, attempt, rescues, due_us, args, headers, late_seconds in zip(
            *columns, strict=True
        ):
            row = self.tables.jobs.get(job_id)
            running = state == "PROCESSING" and late_seconds is not None
            late_us = self.now_us() + int(late_seconds * 1e6) if running else None
            if row is None:
                if self._vanishes(job_id):
                    continue
                self._insert(job_id, state, priority, lane, handler, token, bucket_id, epoch, due_us or None, args, headers,
                             attempt, rescues, late_us=late_us)  # fmt: skip
            elif self._is_mine(row, token, bucket_id, epoch) and not row.cancel_requested:
                self.audit.accepted("persist", row, token, bucket_id, epoch)
                if row.state == "PROCESSING":
                    state, late_us = "PROCESSING", row.expires_us
                headers = row.headers if is_at_most_once(row.headers) else headers
                self._put(row._replace(state=state, headers=headers, expires_us=late_us, changed_us=self.now_us()))
            else:
                continue
            accepted.append(job_id)
            self.audit.bound(self.tables, "persist", bucket_id, epoch, owner)
            if state == "PROCESSING":
                self.audit.authorised(job_id, token, bucket_id, epoch)
        return [Record(bucket_ok=True, accepted=accepted)]

    def _kept_headers(self, row: JobRow, attempt: int, headers: bytes) -> bytes:
        """Headers of a row after a write that holds it: a snooze is counted in those of the agent."""
        is_marked = row.cancel_requested and "mark of the replaced" not in self.without
        once = is_at_most_once(row.headers) > is_at_most_once(headers)
        return row.headers if is_marked or row.attempt != attempt or once else headers

    def outcomes_hold(self, old: Snapshot, bucket_id: bytes, epoch: int, *columns: Any) -> list[Record]:
        demand_values("outcomes/hold", columns[3], columns[5])
        accepted: Ids = []
        cancelled: Ids = []
        for job_id, priority, lane, handler, token, attempt, rescues, due_us, args, headers, error, outcome, _ in zip(
            *columns, strict=True
        ):
            row = self.tables.jobs.get(job_id)
            due = due_us or self.now_us()
            if row is None:
                if self._vanishes(job_id):
                    continue
                self._insert(
                    job_id, "HELD", priority, lane, handler, token, None, None, due, args, headers, attempt, rescues
                )
            elif self._is_mine(row, token, bucket_id, epoch):
                self.audit.accepted("hold", row, token, bucket_id, epoch)
                row = row._replace(headers=self._kept_headers(row, attempt, headers))
                if row.cancel_requested:
                    cancelled.append(job_id)
                    self._put(row._replace(state="CANCELLED", attempt=attempt, rescues=rescues, due_us=due, error=error,
                                           expires_us=None, changed_us=self.now_us()))  # fmt: skip
                else:
                    self._put(row._replace(state="HELD", bucket_id=None, bucket_epoch=None, attempt=attempt, error=None,
                                           rescues=rescues, due_us=due, expires_us=expires_of(headers),
                                           changed_us=self.now_us()))  # fmt: skip
            else:
                continue
            accepted.append(job_id)
            if error is not None and job_id not in cancelled:
                self.tables.attempts.setdefault((job_id, token, bucket_id, epoch), Refusal(outcome, 0))
        return [Record(accepted=accepted, cancelled=cancelled)]

    def outcomes_retry_here(
        self, old: Snapshot, bucket_id: bytes, epoch: int, owner: bytes, *columns: Any
    ) -> list[Record]:
        demand_values("outcomes/retry_here", columns[3], columns[5])
        if not self._lock(old, bucket_id, epoch, owner, ("ACTIVE", "COMPLETING")):
            return [Record(bucket_ok=False, accepted=[], cancelled=[])]
        accepted: Ids = []
        cancelled: Ids = []
        for job_id, priority, lane, handler, token, attempt, rescues, due_us, args, headers, error, outcome, _ in zip(
            *columns, strict=True
        ):
            row = self.tables.jobs.get(job_id)
            due = due_us or None
            if row is None:
                if self._vanishes(job_id):
                    continue
                self._insert(job_id, "ASSIGNED", priority, lane, handler, token + 1, bucket_id, epoch, due, args, headers,
                             attempt, rescues)  # fmt: skip
            elif self._is_mine(row, token, bucket_id, epoch):
                self.audit.accepted("retry_here", row, token, bucket_id, epoch)
                row = row._replace(headers=self._kept_headers(row, attempt, headers))
                gone = row.cancel_requested
                if gone:
                    cancelled.append(job_id)
                self._put(row._replace(state="CANCELLED" if gone else "ASSIGNED", token=token if gone else token + 1,
                                       attempt=attempt, rescues=rescues, due_us=due, error=error if gone else None,
                                       expires_us=None, changed_us=self.now_us()))  # fmt: skip
            else:
                continue
            accepted.append(job_id)
            self.audit.bound(self.tables, "retry_here", bucket_id, epoch, owner)
            if error is not None and job_id not in cancelled:
                self.tables.attempts.setdefault((job_id, token, bucket_id, epoch), Refusal(outcome, 0))
        return [Record(bucket_ok=True, accepted=accepted, cancelled=cancelled)]

    # ------------------------------------------------------------ onboarding and back

    def onboarding_onboard(
        self, old: Snapshot, bucket_id: bytes, epoch: int, owner: bytes, lane: str, priority: int, horizon: float,
        limit: int, from_us: int, handlers: Sequence[str] | None, bytes_max: int, tags: Sequence[str] | None,
        words: Sequence[str] | None, trials: Sequence[bytes] | None, trial_handlers: Sequence[str] | None,
        untenanted: bool,
    ) -> list[Record]:  # fmt: skip
        if not self._lock(old, bucket_id, epoch, owner, ("ACTIVE",)):
            return [Record(bucket_ok=False, found=0, **_NO_ENTRY)]
        due = [
            row for row in self._due(lane, priority, horizon, handlers, tags, words, trials, trial_handlers)
            if (row.due_us or 0) >= from_us and not (untenanted and tenant_of(row.headers))
        ][:limit]  # fmt: skip
        return self._onboarded(due, bytes_max, (bucket_id, epoch, owner), found=len(due))

    def onboarding_onboard_turns(
        self, old: Snapshot, bucket_id: bytes, epoch: int, owner: bytes, lane: str, priority: int, horizon: float,
        limit: int, handlers: Sequence[str] | None, bytes_max: int, tags: Sequence[str] | None,
        words: Sequence[str] | None, trials: Sequence[bytes] | None, trial_handlers: Sequence[str] | None,
        after: str, tenants: int, over_share: Sequence[str], names: Sequence[str], weights: Sequence[int],
    ) -> list[Record]:  # fmt: skip
        if not self._lock(old, bucket_id, epoch, owner, ("ACTIVE",)):
            return [Record(bucket_ok=False, found=0, last_tenant=None, **_NO_ENTRY)]
        held = {tenant_of(row.headers) for row in self.tables.jobs.values()
                if row.state == "HELD" and row.lane == lane and row.priority == priority}  # fmt: skip
        page = sorted(name for name in held if name > after)[:tenants]
        weight = dict(zip(names, weights, strict=True))
        taking = [name for name in page if name not in over_share]
        due = self._due(lane, priority, horizon, handlers, tags, words, trials, trial_handlers)
        chosen = []
        for place, name in enumerate(taking):
            heavy = weight.get(name, 1)
            most = min(limit, max(heavy, 2 * limit // len(taking)))
            mine = [row for row in due if tenant_of(row.headers) == name][:most]
            chosen += [(number // heavy, place, row) for number, row in enumerate(mine)]
        chosen.sort(key=lambda each: each[:2])
        rows = [row for _, _, row in chosen[:limit]]
        last = page[-1] if len(page) == tenants else None
        return self._onboarded(rows, bytes_max, (bucket_id, epoch, owner), found=len(rows), last_tenant=last)

    def _due(
        self, lane: str, priority: int, horizon: float, handlers: Sequence[str] | None, tags: Sequence[str] | None,
        words: Sequence[str] | None, trials: Sequence[bytes] | None, trial_handlers: Sequence[str] | None,
    ) -> list[JobRow]:  # fmt: skip
        latest = self.now_us() + int(horizon * 1e6)
        return sorted(
            (row for row in self.tables.jobs.values()
             if row.state == "HELD" and row.lane == lane and row.priority == priority and not row.cancel_requested
             and row.due_us is not None and row.due_us <= latest
             and (handlers is None or row.handler in handlers
                  or (row.id in (trials or ()) and row.handler in (trial_handlers or ())))
             and (tags is None or not has_tag(row.headers, tags))
             and (words is None or not lacking(row.headers, words))),
            key=lambda row: (row.due_us, row.id),
        )  # fmt: skip

    def _onboarded(
        self, due: Sequence[JobRow], bytes_max: int, fence: tuple[bytes, int, bytes], **answered: Any
    ) -> list[Record]:
        bucket_id, epoch, owner = fence
        answer = []
        for row in due[: fitting_count([len(row.args) + len(row.headers) for row in due], bytes_max)]:
            moved = row._replace(state="ASSIGNED", token=row.token + 1, bucket_id=bucket_id, bucket_epoch=epoch,
                                 expires_us=None, changed_us=self.now_us())  # fmt: skip
            self._put(moved)
            self.audit.bound(self.tables, "onboard", bucket_id, epoch, owner)
            values = (row.id, moved.token, row.handler, row.args, self.moment(row.due_us), row.headers, row.attempt,
                      row.rescues)  # fmt: skip
            answer.append(Record(bucket_ok=True, **answered, **dict(zip(_NO_ENTRY, values, strict=True))))
        return answer or [Record(bucket_ok=True, **answered, **_NO_ENTRY)]

    def onboarding_release(
        self, old: Snapshot, bucket_id: bytes, epoch: int, ids: Ids, tokens: list[int], low: bytes, high: bytes
    ) -> list[Record]:
        answer = []
        for job_id, token in zip(ids, tokens, strict=True):
            row = self.tables.jobs.get(job_id)
            if row is None or row.state != "ASSIGNED" or not self._is_mine(row, token, bucket_id, epoch):
                continue
            self.audit.accepted("release", row, token, bucket_id, epoch)
            state = self._give_back(row, row.token, "release")
            answer.append(Record(id=job_id, state=state))
        return answer

    def _give_back(self, row: JobRow, token: int, by: str) -> str:
        """HELD, or CANCELLED after a cancel request."""
        due = row.due_us or self.now_us()
        if row.cancel_requested:
            self._put(row._replace(state="CANCELLED", due_us=due, expires_us=None, changed_us=self.now_us()))
            return "CANCELLED"
        self._put(row._replace(state="HELD", token=token, bucket_id=None, bucket_epoch=None, due_us=due,
                               expires_us=expires_of(row.headers), changed_us=self.now_us()))  # fmt: skip
        return "HELD"

    # ------------------------------------------------------------ looking and cancelling

    def jobs_peek(self, old: Snapshot, ids: Ids, low: bytes, high: bytes) -> list[Record]:
        rows = [row for job_id in ids if (row := self.tables.jobs.get(job_id)) is not None]
        return [
            Record(id=row.id, state=row.state, token=row.token, bucket_id=row.bucket_id, bucket_epoch=row.bucket_epoch,
                   cancel_requested=row.cancel_requested, due_at=self.moment(row.due_us))
            for row in rows
        ]  # fmt: skip

    def jobs_quarantine(
        self, old: Snapshot, ids: Ids, bucket_id: bytes | None, reasons: list[str], entries: list[bytes]
    ) -> list[Record]:
        for job_id, reason, entry in zip(ids, reasons, entries, strict=True):
            if (job_id, reason) not in self.tables.quarantine:
                self._note_end(job_id)
            self.tables.quarantine.setdefault((job_id, reason), (bucket_id, entry))
        return []

    def requests_cancel(self, old: Snapshot, job_id: bytes, actor: str) -> list[Record]:
        row = self.tables.jobs.get(job_id)
        if row is None or row.state in FINAL or row.state == "MOVED":
            return []
        if row.state in ("HELD", "WAITING"):
            row = row._replace(state="CANCELLED", changed_us=self.now_us())
        self._put(row._replace(cancel_requested=True, expires_us=None))
        return [Record(state=row.state)]

    def requests_cancel_rowless(
        self, old: Snapshot, job_id: bytes, priority: int, lane: str, handler: str, args: bytes, headers: bytes,
        due_us: int, actor: str,
    ) -> list[Record]:  # fmt: skip
        if job_id in self.tables.jobs or self._vanishes(job_id):
            return []
        self._insert(
            job_id, "CANCELLED", priority, lane, handler, 1, None, None, due_us or None, args, headers, cancel=True
        )
        if b'"batch":true' in headers:
            self._note_end(job_id)
        return [Record(state="CANCELLED")]

    def outcomes_cancel_waiting(
        self, old: Snapshot, buckets: Ids, epochs: list[int], ids: Ids, low: bytes, high: bytes
    ) -> list[Record]:
        mine = set(zip(buckets, epochs, strict=True))
        answer = []
        for job_id in ids:
            row = self.tables.jobs.get(job_id)
            if row is None or row.state not in ("ASSIGNED", "CANCELLED") or not row.cancel_requested:
                continue
            if (row.bucket_id, row.bucket_epoch) in mine:
                ended = row.state == "ASSIGNED"
                if ended:
                    self._put(row._replace(state="CANCELLED", expires_us=None, changed_us=self.now_us()))
                due_at = self.moment(row.due_us)
                answer.append(Record(id=job_id, bucket_id=row.bucket_id, due_at=due_at, ended=ended))
        return answer

    # ------------------------------------------------------------ a rescuer's

    def _draining(self, old: Snapshot, bucket_id: bytes, epoch: int, owner: bytes) -> BucketRow | None:
        return self.tables.buckets.get(bucket_id) if self._lock(old, bucket_id, epoch, owner, ("DRAINING",)) else None
