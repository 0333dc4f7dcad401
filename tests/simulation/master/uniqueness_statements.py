"""Twin of the statement about unique keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from jobmaster.codec import decode_headers, encode_headers
from tests.simulation.master.job_statements import JobStatements
from tests.simulation.master.tables import FINAL, JobRow, Record, Snapshot, UniqueKeyRow


class UniquenessStatements(JobStatements):
    """Twin of ``uniqueness``: each key is locked, so its holder is read as it is at that moment."""

    def uniqueness_submit(self, old: Snapshot, *columns: Any) -> list[Record]:
        *rows, recalls = columns
        ordered = sorted(zip(*rows, strict=True), key=lambda row: (row[0], row[1], row[2]))
        keys = old.unique_keys if "unique lock" in self.without else self.tables.unique_keys
        answers = [self._submit_unique(*row, recalls=recalls, keys=keys) for row in ordered]
        for handler, key in sorted({(row[0], row[1]) for row in ordered}):
            self.audit.holds_once(self.tables, handler, key)
        return answers

    def _submit_unique(
        self, handler: str, key: str, own: bytes, priority: int, lane: str, args: bytes, headers: bytes, due_us: int,
        term: str, span_us: int, aligned: bool, on_conflict: str, passed: bytes | None, *, recalls: bool,
        keys: Mapping[tuple[str, str], UniqueKeyRow],
    ) -> Record:  # fmt: skip
        def answer(outcome: str, job_id: bytes, holder: bytes | None = None, limit_us: int | None = None) -> Record:
            return Record(own=own, answer=outcome, job_id=job_id, holder=holder, limit_us=limit_us)

        held, now, limit_us = keys.get((handler, key)), self.now_us(), None
        if own in self.tables.jobs:
            return answer("known", own)
        replaces = False
        if held is not None:
            row = self.tables.jobs.get(held.job_id)
            if on_conflict == "debounce":
                limit_us = held.held_us + span_us
                later = min(due_us or now, limit_us)
                if row is not None and _can_be_moved(row, later):
                    self._put(row._replace(due_us=later, changed_us=now))
                    return answer("debounced", held.job_id, held.job_id, limit_us)
            waits = row is not None and _waits(row) and held.job_id != passed
            moved = row is not None and row.state == "MOVED"
            if on_conflict == "debounce" and recalls and waits:
                return answer("recall", held.job_id, held.job_id, limit_us)
            lives = row is not None and row.state not in FINAL
            if self._holds_key(held, lives, waits, on_conflict == "debounce", row):
                if on_conflict != "replace" or not lives or moved:
                    return answer("existing", held.job_id, held.job_id, limit_us)
                replaces = True
        until = None
        if term == "window":
            until = (now // span_us + 1) * span_us if aligned else now + span_us
            marked = msgspec.structs.replace(decode_headers(headers), unique_from_us=now, unique_until_us=until)
            headers = encode_headers(marked)
        if self._vanishes(own):
            return answer("refused", own, limit_us=limit_us)
        self._insert(own, "HELD", priority, lane, handler, 1, None, None, due_us or now, args, headers)
        self.tables.unique_keys[handler, key] = UniqueKeyRow(own, term, now, until)
        if not replaces:
            return answer("created", own, limit_us=limit_us)
        assert held is not None
        self._supersede(self.tables.jobs[held.job_id], own)
        return answer("replaced", own, held.job_id, limit_us)

    def _holds_key(self, held: UniqueKeyRow, lives: bool, waits: bool, debounces: bool, row: JobRow | None) -> bool:
        if "unique key" in self.without:
            return False
        if held.until_us is not None:
            return held.until_us > self.now_us()
        if held.term == "live":
            return lives
        if row is not None and row.state == "MOVED":
            return True
        return waits and not (debounces and row is not None and row.state == "ASSIGNED")

    def _supersede(self, row: JobRow, by: bytes) -> None:
        """The holder of a key loses it: it is cancelled, and names the job that has taken the key."""
        waits = row.state in ("HELD", "WAITING")
        text = f"{by.hex()[:8]}-{by.hex()[8:12]}-{by.hex()[12:16]}-{by.hex()[16:20]}-{by.hex()[20:]}"
        marked = row.headers[:-1] + f',"superseded_by":"{text}"}}'.encode()
        self._put(
            row._replace(
                state="CANCELLED" if waits else row.state,
                changed_us=self.now_us() if waits else row.changed_us,
                expires_us=None,
                cancel_requested=True,
                headers=marked,
            )
        )


def _waits(row: JobRow) -> bool:
    begun = row.attempt or row.rescues or (b'"snoozes":' in row.headers and decode_headers(row.headers).snoozes)
    return row.state in ("HELD", "ASSIGNED") and not begun


def _can_be_moved(row: JobRow, later: int) -> bool:
    return row.state == "HELD" and _waits(row) and (row.expires_us is None or later < row.expires_us)
