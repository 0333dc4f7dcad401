"""Twins of the statements of bulk operations."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from jobmaster.codec import decode_headers
from jobmaster.model.ids import text
from tests.simulation.checks.audit import Job
from tests.simulation.master.job_statements import JobStatements
from tests.simulation.master.tables import FINAL, JobRow, Record, Snapshot

_DELETED = b'{"deleted":true}'
_DELETED_ERROR = b'{"type":"Deleted","message":"the contents of the job have been deleted","reason":"deleted"}'
_RETRYABLE = ("FAILED", "CANCELLED", "EXPIRED")
_WAITS = ("HELD", "WAITING")


class BulkRow(NamedTuple):
    """One row of ``bulk_operation``."""

    id: bytes
    kind: str
    filter: str
    change: str
    lowest: bytes
    highest: bytes
    actor: str
    reason: str
    unsearched: int
    created_us: int
    state: str = "WAITING"
    cursor: bytes | None = None
    changed: int = 0
    skipped: tuple[tuple[str, int], ...] = ()
    error: str = ""
    started_us: int | None = None
    moved_us: int | None = None
    ended_us: int | None = None

    @property
    def goes_on(self) -> bool:
        return self.state in ("WAITING", "RUNNING")


class BulkStatements(JobStatements):
    """Twins of ``bulk``. (Nothing is put off in a history.)"""

    def bulk_start(
        self, old: Snapshot, operation: bytes, kind: str, chosen: str, change: str, lowest: bytes, highest: bytes,
        actor: str, reason: str, unsearched: int,
    ) -> list[Record]:  # fmt: skip
        if operation in self.tables.bulk:
            return []
        first = min((each for each in self.tables.jobs if each <= highest), default=lowest)
        values = (operation, kind, chosen, change, max(lowest, first), highest, actor, reason, unsearched)
        self.tables.bulk[operation] = BulkRow(*values, self.now_us())
        return [Record(id=operation)]

    def bulk_list(
        self, old: Snapshot, wanted: bytes | None, states: Sequence[str], before: bytes | None, limit: int
    ) -> list[Record]:
        rows = [
            row
            for id_, row in sorted(self.tables.bulk.items(), reverse=True)
            if wanted in (None, id_) and (before is None or id_ < before) and (not states or row.state in states)
        ]
        return [
            Record(
                id=row.id, kind=row.kind, state=row.state, filter=row.filter, change=row.change, lowest=row.lowest,
                highest=row.highest, cursor=row.cursor, actor=row.actor, reason=row.reason, changed=row.changed,
                skipped=json.dumps(dict(row.skipped)), unsearched=row.unsearched, error=row.error,
                created_us=row.created_us, started_us=row.started_us, moved_us=row.moved_us, ended_us=row.ended_us,
            )
            for row in rows[:limit]
        ]  # fmt: skip

    def bulk_next(self, old: Snapshot) -> list[Record]:
        rows = sorted(row for row in self.tables.bulk.values() if row.goes_on)
        return [
            Record(
                id=row.id, kind=row.kind, filter=row.filter, change=row.change, lowest=row.lowest,
                highest=row.highest, cursor=row.cursor, ended_per_second=0.0,
            )
            for row in rows[:1]
        ]  # fmt: skip

    def bulk_goes_on(self) -> bool:
        """For the leader's tick."""
        return any(row.goes_on for row in self.tables.bulk.values())

    def bulk_cancel(self, old: Snapshot, operation: bytes, actor: str) -> list[Record]:
        row = self.tables.bulk.get(operation)
        if row is None or not row.goes_on:
            return []
        self.tables.bulk[operation] = row._replace(state="CANCELLED", ended_us=self.now_us())
        return [Record(id=operation)]

    def bulk_finish(
        self, old: Snapshot, operation: bytes, cursor: bytes | None, error: str, skipped: str
    ) -> list[Record]:
        row = self._page_of(operation, cursor)
        if row is None:
            return []
        now = self.now_us()
        row = row._replace(
            state="FAILED" if error else "DONE", error=error, ended_us=now, started_us=row.started_us or now,
            cursor=row.cursor if error else row.highest, skipped=_sum(row.skipped, json.loads(skipped)),
        )  # fmt: skip
        self.tables.bulk[operation] = row
        return [Record(changed=row.changed, skipped=json.dumps(dict(row.skipped)))]

    # ------------------------------------------------------------ the jobs that fit

    def bulk_find(
        self, old: Snapshot, kind: str, chosen: str, lowest: bytes, highest: bytes, reads: int, limit: int,
        due_us: int | None, payload: bool,
    ) -> list[Record]:  # fmt: skip
        """Of a filter the states, the handler and the tag; histories give no others."""
        given: dict[str, Any] = json.loads(chosen)
        step = sorted(row for row in self.tables.jobs.values() if lowest <= row.id <= highest)[:reads]
        if not step:
            return [self._found(None, None, kind, due_us, payload)]
        fit = [
            row
            for row in step
            if row.state in given["states"] and given.get("handler") in (None, row.handler)
            and ("tag" not in given or given["tag"] in decode_headers(row.headers).tags) and row.headers != _DELETED
        ]  # fmt: skip
        rows: list[JobRow | None] = [*fit[:limit]]
        return [self._found(step[-1].id, row, kind, due_us, payload) for row in rows or [None]]

    def _found(self, read_to: bytes | None, row: JobRow | None, kind: str, due_us: int | None, payload: bool) -> Record:
        if row is None:
            names = ("id", "skip", "holder", "handler", "lane", "priority", "args", "headers")
            return Record(read_to=read_to, **dict.fromkeys(names))
        key = self.tables.keys.get((row.handler, f"retry of {text(row.id)}")) if kind == "retry" else None
        return Record(
            read_to=read_to, id=row.id, skip=self._skip(row, kind, due_us, key is not None and key[0] in self.tables.jobs),
            holder=None if key is None else key[0], handler=row.handler, lane=row.lane, priority=row.priority,
            args=row.args if payload else None, headers=row.headers if payload else None,
        )  # fmt: skip

    def _skip(self, row: JobRow, kind: str, due_us: int | None, retried: bool) -> str | None:
        if kind == "retry":
            return "RETRIED" if retried else None
        if kind == "cancel":
            return "REQUESTED" if row.cancel_requested else None
        if kind == "reschedule":
            if row.state != "HELD":
                return "SIGNAL" if row.bucket_id is None else "IN_BUCKET"
            return "EXPIRES" if due_us and row.expires_us is not None and due_us >= row.expires_us else None
        return "WORKFLOW" if b'"workflow":["' in row.headers else None

    # ------------------------------------------------------------ pages

    def bulk_cancel_page(
        self, old: Snapshot, operation: bytes, cursor: bytes | None, read_to: bytes, skipped: str,
        ids: Sequence[bytes], states: Sequence[str],
    ) -> list[Record]:  # fmt: skip
        there = self._page_of(operation, cursor)
        if there is None:
            return []
        rows = [row for row in self._rows(ids) if row.state in states and row.state not in FINAL]
        rows = [row for row in rows if not row.cancel_requested]
        for row in rows:
            ends = row.state in _WAITS
            self._put(
                row._replace(
                    state="CANCELLED" if ends else row.state, cancel_requested=True, expires_us=None,
                    changed_us=self.now_us() if ends else row.changed_us,
                )
            )  # fmt: skip
        return self._moved(there, read_to, skipped, len(ids), len(rows))

    def bulk_reschedule_page(
        self, old: Snapshot, operation: bytes, cursor: bytes | None, read_to: bytes, skipped: str,
        ids: Sequence[bytes], due_us: int | None, priority: int | None, lane: str | None,
    ) -> list[Record]:  # fmt: skip
        there = self._page_of(operation, cursor)
        if there is None:
            return []
        now = self.now_us()
        rows = [row for row in self._rows(ids) if row.state == "HELD"]
        rows = [row for row in rows if row.expires_us is None or not due_us or due_us < row.expires_us]
        for row in rows:
            due = row.due_us or now
            due = due_us if due_us else min(due, now) if due_us == 0 else due
            self._put(
                row._replace(due_us=due, priority=priority or row.priority, lane=lane or row.lane, changed_us=now)
            )
        return self._moved(there, read_to, skipped, len(ids), len(rows))

    def bulk_delete_page(
        self, old: Snapshot, operation: bytes, cursor: bytes | None, read_to: bytes, skipped: str,
        ids: Sequence[bytes], states: Sequence[str],
    ) -> list[Record]:  # fmt: skip
        there = self._page_of(operation, cursor)
        if there is None:
            return []
        rows = [
            row for row in self._rows(ids) if row.state in states and row.state in FINAL and row.headers != _DELETED
        ]
        for row in rows:  # a final row stays final, so it is no write that the audit would compare
            error = None if row.error is None else _DELETED_ERROR
            self.tables.jobs[row.id] = row._replace(args=b"{}", headers=_DELETED, result=None, error=error)
        return self._moved(there, read_to, skipped, len(ids), len(rows))

    def bulk_retry_page(
        self, old: Snapshot, operation: bytes, cursor: bytes | None, read_to: bytes, skipped: str,
        ids: Sequence[bytes], new_ids: Sequence[bytes], reserved: Sequence[bool], states: Sequence[str], *columns: Any,
    ) -> list[Record]:  # fmt: skip
        there = self._page_of(operation, cursor)
        if there is None:
            return []
        made = 0
        for old_id, new_id, is_reserved, headers, digest, args in zip(ids, new_ids, reserved, *columns, strict=True):
            row = self.tables.jobs.get(old_id)
            if row is None or row.state not in states or row.state not in _RETRYABLE or row.headers == _DELETED:
                continue
            key = (row.handler, f"retry of {text(old_id)}")
            if not is_reserved:
                if key in self.tables.keys and "key of a bulk retry" not in self.without:
                    continue
                self.tables.keys[key] = (new_id, digest)
            if new_id in self.tables.jobs or self._vanishes(new_id):
                continue
            self.audit.jobs.setdefault(new_id, Job(new_id, "batched", level="master"))
            self._insert(
                new_id,
                "HELD",
                row.priority,
                row.lane,
                row.handler,
                1,
                None,
                None,
                self.now_us(),
                row.args if args is None else args,
                headers,
            )
            made += 1
        return self._moved(there, read_to, skipped, len(ids), made)

    def _rows(self, ids: Sequence[bytes]) -> list[JobRow]:
        return [self.tables.jobs[id_] for id_ in ids if id_ in self.tables.jobs]

    def _page_of(self, operation: bytes, cursor: bytes | None) -> BulkRow | None:
        """The operation, unless it has ended or another leader has written this page."""
        row = self.tables.bulk.get(operation)
        if row is None or (not row.goes_on and "end of a bulk operation" not in self.without):
            return None
        return row if row.cursor == cursor or "cursor of a bulk operation" in self.without else None

    def _moved(self, row: BulkRow, read_to: bytes, skipped: str, given: int, changed: int) -> list[Record]:
        if row.cursor is not None and read_to <= row.cursor:
            self.audit.broken("bulk", f"the cursor of {text(row.id)} moves back to {text(read_to)}")
        if not row.goes_on:
            self.audit.broken("bulk", f"{text(row.id)} has ended, and a page of it is written")
        now, more = self.now_us(), Counter(json.loads(skipped)) + Counter({"CHANGED": given - changed})
        self.tables.bulk[row.id] = row._replace(
            state="RUNNING" if row.goes_on else row.state, cursor=read_to, started_us=row.started_us or now,
            moved_us=now, changed=row.changed + changed, skipped=_sum(row.skipped, more),
        )  # fmt: skip
        self.hits[f"bulk: page of a {row.kind}"] += 1
        return [Record(jobs=changed)]


def _sum(counts: tuple[tuple[str, int], ...], more: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((Counter(dict(counts)) + Counter(more)).items()))
