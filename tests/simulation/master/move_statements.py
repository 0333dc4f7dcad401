"""Twins of the statements about the mode of a cluster, and of those that move its jobs to another master.

A row that goes to the other master is the row itself here, where the server makes JSON of it. Tables of definitions
(schedules, limits, pauses) and keys have no twin: no job moves by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobmaster.model.errors import Conflict
from jobmaster.model.job import SignalWait
from tests.simulation.master.signal_statements import SignalStatements, wait_of
from tests.simulation.master.tables import ALIVE, IN_FLIGHT, JobRow, MoveRow, Record, Snapshot

WAITS = ("HELD", "WAITING")


class MoveStatements(SignalStatements):
    """Twins of ``cluster``."""

    # ------------------------------------------------------------ the mode

    def schema_cluster(self, old: Snapshot) -> list[Record]:
        return [Record(name=self.tables.name, uid=self.tables.name.encode().ljust(16))]

    def reports_cluster_mode(self, old: Snapshot) -> list[Record]:
        return [Record(mode=self.tables.mode)]

    def cluster_set_mode(self, old: Snapshot, mode: str, actor: str, reason: str) -> list[Record]:
        tables, former = self.tables, self.tables.mode
        if former == mode:
            return [Record(former=former)]
        move = tables.move
        if mode == "active" and move is not None and move.page and "page in doubt" not in self.without:
            raise Conflict("a move to another master was interrupted, and some jobs may be in both")
        if mode == "active" and tables.passed_signals:
            raise Conflict("a move to another master was interrupted, and some signals are on their way")
        if mode == "archived":
            if any(row.state in (*WAITS, *IN_FLIGHT) for row in tables.jobs.values()):
                raise Conflict("jobs have not ended")
            if any(bucket.state != "READY_TO_DELETE" for bucket in tables.buckets.values()):
                raise Conflict("buckets are open, and may hold jobs")
        tables.mode, tables.mode_us = mode, self.now_us()
        self.hits[f"cluster is {mode}"] += 1
        return [Record(former=former)]

    # ------------------------------------------------------------ the page that is on its way

    def cluster_begin_move(self, old: Snapshot, target: bytes, name: str) -> list[Record]:
        move = self.tables.move
        if move is None:
            move = MoveRow(target, name, (), 0)
        elif not move.page and not self.tables.passed_signals:
            move = move._replace(target=target, target_name=name)
        self.tables.move = move
        return [Record(target=move.target, target_name=move.target_name, page=list(move.page), moved=move.moved)]

    def cluster_note_page(self, old: Snapshot, page: Sequence[bytes]) -> list[Record]:
        tables = self.tables
        if tables.move is None or tables.mode != "migrating" or not self._is_quiet():
            return []
        tables.move = tables.move._replace(page=tuple(page))
        return [Record(page=list(page))]

    def _is_quiet(self) -> bool:
        """No agent runs a job, and none opens a bucket."""
        tables, now = self.tables, self.now_us()
        alive = [agent for agent in tables.agents.values() if agent.state in ALIVE]
        if "open buckets" not in self.without and any(
            bucket.state != "READY_TO_DELETE" for bucket in tables.buckets.values()
        ):
            return False
        if "leases" in self.without:
            return True
        longest_us = max((agent.lease_us for agent in alive), default=0)
        return not any(agent.lease_until < now for agent in alive) and tables.mode_us + longest_us < now

    def cluster_choose_jobs(self, old: Snapshot, limit: int) -> list[Record]:
        waiting = sorted(row.id for row in self.tables.jobs.values() if row.state in WAITS and self._goes(row))
        return [Record(id=job_id) for job_id in waiting[:limit]]

    def _goes(self, row: JobRow) -> bool:
        return b'"workflow":[' not in row.headers and row.id[:12] + bytes(4) not in self.tables.batch_ranges

    def cluster_lock_page(self, old: Snapshot, ids: Sequence[bytes]) -> list[Record]:
        found = [self.tables.jobs.get(job_id) for job_id in sorted(ids)]
        return [
            Record(
                id=row.id,
                bytes=sum(len(each or b"") for each in (row.args, row.headers, row.result, row.error)),
                signal_key=wait_of(row.headers).key if row.state == "WAITING" and row.bucket_id is None else None,
            )
            for row in found
            if row is not None and row.state in WAITS
        ]

    def cluster_mark_moved(self, old: Snapshot, ids: Sequence[bytes]) -> list[Record]:
        tables, marked = self.tables, 0
        for row in [tables.jobs[job_id] for job_id in ids if job_id in tables.jobs]:
            if row.state in WAITS:
                self._put(row._replace(state="MOVED", changed_us=self.now_us()))
                tables.waiting.pop(row.id, None)
                marked += 1
        if tables.move is not None:
            tables.move = tables.move._replace(page=(), moved=tables.move.moved + marked)
        self.hits["job moved"] += marked
        return [Record(moved=marked)]

    def cluster_left(self, old: Snapshot) -> list[Record]:
        tables, now = self.tables, self.now_us()
        return [Record(
            buckets=sum(bucket.state != "READY_TO_DELETE" for bucket in tables.buckets.values()),
            overdue=sum(agent.state in ALIVE and agent.lease_until < now for agent in tables.agents.values()),
            in_flight=any(row.state in IN_FLIGHT for row in tables.jobs.values()),
            waiting=any(row.state in WAITS and self._goes(row) for row in tables.jobs.values()),
            workflows=sum(row.state == "RUNNING" for row in tables.workflows.values()),
            batches=sum(row.look_us is not None for row in tables.batches.values()),
        )]  # fmt: skip

    # ------------------------------------------------------------ rows

    def cluster_read_page(self, old: Snapshot, ids: Sequence[bytes]) -> list[Record]:
        wanted, tables = set(ids), self.tables
        jobs = [Record(table_name="job", row_text=row) for row in tables.jobs.values() if row.id in wanted]
        lines = [line for line in tables.attempts.items() if line[0][0] in wanted]
        return [*jobs, *(Record(table_name="attempt", row_text=line) for line in lines)]

    def cluster_take_rows(self, old: Snapshot, table: str, rows: Sequence[Any]) -> list[Record]:
        tables, taken = self.tables, 0
        for row in rows:
            if table == "attempt":
                taken += tables.attempts.setdefault(*row) is row[1]
            elif table == "job" and (row.id not in tables.jobs or "rows that are there" in self.without):
                self._put(row)
                if row.state == "WAITING":
                    tables.waiting[row.id] = wait_of(row.headers).key
                taken += 1
        return [Record(taken=taken)]

    def cluster_read_rows(self, old: Snapshot, table: str, *_: Any) -> list[Record]:
        return []

    def cluster_snapshot(self, old: Snapshot) -> list[Record]:
        return [Record(at=None, lowest=1, running=[])]

    def cluster_stop_schedules(self, old: Snapshot, actor: str) -> list[Record]:
        return []

    # ------------------------------------------------------------ signals

    def cluster_lock_signals(self, old: Snapshot, keys: Sequence[str]) -> list[Record]:
        """What a simulated master does, it does at one moment."""
        return []

    def cluster_receive_signals(self, old: Snapshot, ids: Sequence[bytes], keys: Sequence[str]) -> list[Record]:
        tables = self.tables
        for row in [tables.jobs[job_id] for job_id in ids if job_id in tables.jobs]:
            wait: SignalWait | None = wait_of(row.headers) if row.state == "WAITING" else None
            if wait is None or row.bucket_id is not None or (kept := self._kept(tables.signals, wait.key)) is None:
                continue
            self._receive(row, kept)
        return []

    def cluster_note_signals(self, old: Snapshot) -> list[Record]:
        now, noted = self.now_us(), 0
        for row in list(self.tables.signals.values()):
            if (row.kept_until_us or 0) > now:
                self.tables.signals[row.id] = row._replace(kept_until_us=None)
                self.tables.passed_signals.setdefault(row.id, row)
                noted += 1
        return [Record(noted=noted)]

    def cluster_noted_signal(self, old: Snapshot) -> list[Record]:
        passed = sorted(self.tables.passed_signals.values(), key=lambda row: (row.sent_us, row.id))
        return [
            Record(
                id=row.id, key=row.key, recipients=row.recipients, payload=row.payload, actor=row.actor,
                sent_at=row.sent_us, keep_seconds=max((row.kept_until_us or 0) - self.now_us(), 0) / 1e6,
            )
            for row in passed[:1]
        ]  # fmt: skip

    def cluster_forget_signal(self, old: Snapshot, signal_id: bytes) -> list[Record]:
        self.tables.passed_signals.pop(signal_id, None)
        return []
