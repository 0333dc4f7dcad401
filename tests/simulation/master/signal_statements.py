"""Twins of the statements about signals and the jobs that wait for them.

The lock of a key makes its statements follow one another, so each sees the tables as they are. Left out, each sees them as
they were when it began.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from jobmaster.codec import decode_headers
from jobmaster.model.job import SignalWait
from tests.simulation.master.job_statements import JobStatements, expires_of
from tests.simulation.master.tables import JobRow, Record, SignalRow, Snapshot


def wait_of(headers: bytes) -> SignalWait:
    wait = decode_headers(headers).signal
    assert wait is not None, "a job that waits for a signal names it"
    return wait


def with_signal(headers: bytes, signal: SignalRow) -> bytes:
    received = {"id": str(UUID(bytes=signal.id)), "payload": signal.payload.decode(), "sent_us": signal.sent_us}
    return headers[:-1] + b',"received":' + json.dumps(received, ensure_ascii=False).encode() + b"}"


class SignalStatements(JobStatements):
    """Twins of ``signals``."""

    def signals_hold_waiting(self, old: Snapshot, *columns: Sequence[Any]) -> list[Record]:
        accepted = []
        for job_id, priority, lane, handler, args, headers, due_us in sorted(zip(*columns, strict=True)):
            if job_id in self.tables.jobs or self._vanishes(job_id):
                continue
            rows = old.signals if "signal lock" in self.without else self.tables.signals
            self._await_signal(rows, job_id, priority, lane, handler, due_us or self.now_us(), args, headers)
            accepted.append(job_id)
        return [Record(accepted=accepted)]

    def _await_signal(self, rows: Mapping[bytes, SignalRow], job_id: bytes, *columns: Any) -> None:
        """A job begins to wait, or receives what is kept.

        Args:
            rows: the signals as the statement sees them.
        """
        priority, lane, handler, due_us, args, headers = columns
        wait, now = wait_of(headers), self.now_us()
        ends = [expires_of(headers), None if wait.seconds is None else now + int(wait.seconds * 1e6)]
        late_us = min((end for end in ends if end is not None), default=None)
        self._insert(job_id, "WAITING", priority, lane, handler, 1, None, None, due_us, args, headers, late_us=late_us)
        if (kept := self._kept(rows, wait.key)) is not None:
            self._receive(self.tables.jobs[job_id], kept)
        else:
            self.tables.waiting[job_id] = wait.key

    def _receive(self, row: JobRow, kept: SignalRow) -> None:
        """A job that waits gets a signal that is kept."""
        if kept.recipients == "one":
            self.tables.signals[kept.id] = kept._replace(kept_until_us=None, delivered=1)
        headers = with_signal(row.headers, kept)
        self._put(row._replace(state="HELD", expires_us=expires_of(row.headers), headers=headers))
        self.tables.waiting.pop(row.id, None)
        self.hits["signal: kept"] += 1

    def _kept(self, rows: Mapping[bytes, SignalRow], key: str) -> SignalRow | None:
        kept = [row for row in rows.values() if row.key == key and (row.kept_until_us or 0) > self.now_us()]
        # One for one job is taken by a compare-and-set.
        present = self.tables.signals
        free = [row for row in kept if row.recipients == "all" or present[row.id].kept_until_us is not None]
        return min(free, key=lambda row: row.sent_us, default=None)

    def signals_send(
        self, old: Snapshot, signal_id: bytes, key: str, payload: bytes, recipients: str, keep: float, most: int,
        actor: str, portion: int,
    ) -> list[Record]:  # fmt: skip
        sent = self.tables.signals.get(signal_id)
        now = self.now_us()
        if sent is not None and (sent.key, sent.payload, sent.recipients) != (key, payload, recipients):
            return [self._answer("conflict", sent)]
        if sent is not None and sent.finished and "signal id" not in self.without:
            return [self._answer("repeated", sent)]
        is_new = sent is None
        if sent is None:
            replaced = (key, "all") if recipients == "all" else None
            kept = [row for row in self.tables.signals.values() if (row.kept_until_us or 0) > now]
            if keep > 0 and sum((row.key, row.recipients) != replaced for row in kept) >= most:
                return [Record(status="full", delivered=0, finished=True, kept_until=None)]
            sent = SignalRow(signal_id, key, recipients, payload, actor, now, 0, False, None)
            if recipients == "all" and keep > 0:
                for news in list(self.tables.signals.values()):
                    if (news.key, news.recipients) == (key, "all"):
                        self.tables.signals[news.id] = news._replace(kept_until_us=None)
                sent = sent._replace(kept_until_us=now + int(keep * 1e6))
        waiting = self._waiting(old, key)
        reached = waiting[: 1 if recipients == "one" else portion]
        for row in reached:
            self._leave(row, "HELD", headers=with_signal(row.headers, sent))
        finished = (recipients == "one" and sent.delivered + len(reached) > 0) or len(reached) == len(waiting)
        sent = sent._replace(delivered=sent.delivered + len(reached), finished=finished)
        if recipients == "one" and not sent.delivered and keep > 0:
            sent = sent._replace(kept_until_us=sent.sent_us + int(keep * 1e6))
        if not is_new or sent.delivered or sent.kept_until_us is not None or not finished:
            self.tables.signals[signal_id] = sent
        self.hits["signal: sent"] += bool(reached)
        return [self._answer("sent", sent)]

    def _answer(self, status: str, sent: SignalRow) -> Record:
        finished = sent.finished or status != "sent"
        return Record(
            status=status, delivered=sent.delivered, finished=finished, kept_until=self.moment(sent.kept_until_us)
        )

    def _waiting(self, old: Snapshot, key: str) -> list[JobRow]:
        """Jobs that wait for a key, by id; a cancel may have ended some."""
        seen = old.waiting if "signal lock" in self.without else self.tables.waiting
        rows = [self.tables.jobs[job_id] for job_id, its in sorted(seen.items()) if its == key]
        if "signal lock of a step" in self.without:
            rows = [row for row in rows if row.id in old.waiting or decode_headers(row.headers).workflow is None]
        return [row for row in rows if row.state == "WAITING"]

    def _leave(self, row: JobRow, state: str, **values: Any) -> None:
        now = self.now_us()
        if state == "HELD":
            row = row._replace(due_us=max(row.due_us or 0, now), expires_us=expires_of(row.headers))
        self._put(row._replace(state=state, changed_us=now, **values))
        self.tables.waiting.pop(row.id, None)

    def signals_wanted(self) -> bool:
        """Of the leader's tick."""
        now = self.now_us()
        rows = [self.tables.jobs[job_id] for job_id in self.tables.waiting]
        return any(
            row.state == "WAITING" and row.expires_us is not None and row.expires_us <= now for row in rows
        ) or any(not row.finished and row.sent_us <= now - 10_000_000 for row in self.tables.signals.values())

    def signals_finish(self, old: Snapshot, age: float, portion: int) -> list[Record]:
        before = self.now_us() - int(age * 1e6)
        late = [row for row in self.tables.signals.values() if not row.finished and row.sent_us <= before]
        if not late:
            return []
        sent = min(late, key=lambda row: row.sent_us)
        self.hits["signal: finished for its sender"] += 1
        (answer,) = self.signals_send(old, sent.id, sent.key, sent.payload, sent.recipients, 0, 0, sent.actor, portion)
        return [Record(delivered=answer["delivered"], finished=answer["finished"])]

    def signals_expire(self, old: Snapshot, limit: int, error: bytes) -> list[Record]:
        now = self.now_us()
        waiting = [self.tables.jobs[job_id] for job_id in self.tables.waiting]
        late = [
            row for row in waiting if row.state == "WAITING" and row.expires_us is not None and row.expires_us <= now
        ]
        expired = started = 0
        for row in sorted(late, key=lambda row: row.expires_us or 0)[:limit]:
            ends = expires_of(row.headers)
            if wait_of(row.headers).run and (ends is None or ends > now):
                self._leave(row, "HELD")
                started += 1
            else:
                self._leave(row, "EXPIRED", error=error)
                expired += 1
        self.hits["signal: too late"] += expired + started
        return [Record(expired=expired, started=started)]

    def signals_end_kept(self, old: Snapshot, limit: int) -> list[Record]:
        now = self.now_us()
        over = [
            row for row in self.tables.signals.values() if row.kept_until_us is not None and row.kept_until_us <= now
        ]
        for row in over[:limit]:
            self.tables.signals[row.id] = row._replace(kept_until_us=None)
        return [Record(ended=len(over[:limit]))]

    def maintenance_forget_signals(self, old: Snapshot, days: float, limit: int) -> list[Record]:
        return [Record(forgotten=0)]  # no history is that long
