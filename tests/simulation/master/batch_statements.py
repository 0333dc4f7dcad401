"""Twins of the statements about batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from jobmaster.model.flow.batch import range_of
from tests.simulation.master.job_statements import JobStatements
from tests.simulation.master.statements_base import AGENT_OUTCOMES
from tests.simulation.master.tables import FINAL, JobRow, Record, Snapshot

_FOLLOWS = {"SUCCEEDED": ("complete", "success"), "FAILED": ("complete", "failure"), "CANCELLED": ("complete",)}
_WAITS = ("HELD", "WAITING")


class CallbackRow(NamedTuple):
    """One row of ``batch_callback``."""

    occasion: str
    priority: int
    lane: str
    handler: str
    args: bytes
    headers: bytes
    job_id: bytes | None = None


class BatchRow(NamedTuple):
    """One row of ``batch``, with its callbacks."""

    id: bytes
    parent: bytes | None
    retry_of: bytes | None
    name: str
    description: str
    created_us: int
    expires_us: int | None
    silent_us: int | None
    look_us: int | None
    callbacks: tuple[CallbackRow, ...]
    key: str | None
    producer: bytes | None
    signed_us: int
    settled: int = 0
    stored: int = 0
    reserved: int = 0
    state: str = "OPEN"
    size: int = 0
    reason: str = ""
    cancel_requested: bool = False
    closed_us: int | None = None
    ended_us: int | None = None
    counts: tuple[int, ...] | None = None
    """Succeeded, failed, cancelled, expired, unfinished, missing."""


class BatchStatements(JobStatements):
    """Twins of ``batches``."""

    batch_look_us = 10_000_000
    _ended_jobs: tuple[tuple[bytes, str], ...] = ()
    """Jobs of batches that the statement under way has ended by an update, and their states before."""

    def _put(self, row: JobRow) -> None:
        before = self.tables.jobs.get(row.id)
        super()._put(row)
        if before is not None and row.state in FINAL and before.state != row.state and b'"batch":true' in row.headers:
            self._ended_jobs += ((row.id, before.state),)

    def run_triggers(self, statement: str, old: Snapshot) -> None:
        """Notes of ended jobs of which no agent tells."""
        super().run_triggers(statement, old)
        ended, self._ended_jobs = self._ended_jobs, ()
        for job_id, before in ended:
            if before == "WAITING" or statement not in AGENT_OUTCOMES:
                self._note_end(job_id)

    def batches_take_notes(self, old: Snapshot, agent_id: bytes, limit: int) -> list[Record]:
        taken = sorted(self.tables.batch_notes)
        taken, self.tables.batch_notes = taken[:limit], taken[limit:]
        ended = Counter(taken)
        self.batches_tally(old, agent_id, list(ended), list(ended.values()))
        self.hits["batch: job ended by no agent"] += len(taken)
        return [Record(lo=lowest, jobs=jobs) for lowest, jobs in ended.items()]

    def _after(self, seconds: float) -> int:
        return self.now_us() + int(seconds * 1e6)

    def _look(self, us: int, *ends: int | None) -> int:
        """When the leader looks: not later than at an end that lies ahead."""
        now = self.now_us()
        return min([now + us, *(end for end in ends if end is not None and end > now)])

    def batches_open(
        self, old: Snapshot, batch_id: bytes, parent: bytes | None, retry_of: bytes | None, name: str, description: str,
        timeout: float | None, abandon: float, *more: Any,
    ) -> list[Record]:  # fmt: skip
        *columns, key, producer = more
        tables = self.tables
        if key is not None and any(row.key == key for row in tables.batches.values()):
            return []
        within = None if parent is None else tables.batches.get(tables.batch_ranges.get(parent, b""))
        closed = within is None or within.ended_us is not None or within.cancel_requested
        if batch_id in tables.batches or (parent is not None and closed):
            return []
        expires_us = None if timeout is None else self._after(timeout)
        tables.batches[batch_id] = BatchRow(
            batch_id, None if within is None else within.id, retry_of, name, description, self.now_us(),
            expires_us, self._after(abandon), self._look(self.batch_look_us, expires_us),
            tuple(CallbackRow(*row) for row in zip(*columns, strict=True)), key, producer, self.now_us(),
        )  # fmt: skip
        tables.batch_ranges[batch_id] = batch_id
        tables.batch_firsts[batch_id] = 0
        return [Record(id=batch_id)]

    def batches_take_over(
        self, old: Snapshot, key: str, producer: bytes, silent: float, abandon: float
    ) -> list[Record]:
        batch = next((row for row in self.tables.batches.values() if row.key == key), None)
        if batch is None:
            return []
        silent_us = self.now_us() - int(silent * 1e6)
        taken = batch.state == "OPEN" and (batch.producer == producer or batch.signed_us < silent_us)
        if taken:
            self.tables.batches[batch.id] = batch._replace(
                producer=producer, signed_us=self.now_us(), silent_us=self._after(abandon)
            )
        ranges = sorted(self._ranges(batch.id))
        return [
            Record(
                id=batch.id, state=batch.state, cancel_requested=batch.cancel_requested, taken=taken,
                settled=batch.settled, stored=batch.stored, reserved=batch.reserved, ranges=ranges,
                firsts=[self.tables.batch_firsts[lowest] for lowest in ranges],
            )
        ]  # fmt: skip

    def _fills(self, batch_id: bytes, producer: bytes | None) -> BatchRow | None:
        batch = self.tables.batches.get(batch_id)
        return batch if batch is not None and batch.state == "OPEN" and batch.producer == producer else None

    def batches_add_range(
        self, old: Snapshot, batch_id: bytes, lowest: bytes, first: int, producer: bytes | None
    ) -> list[Record]:
        if self._fills(batch_id, producer) is None:
            return []
        taken = self.tables.batch_ranges.setdefault(lowest, batch_id)
        self.tables.batch_firsts.setdefault(lowest, first)
        return [Record(lo=lowest)] if taken == batch_id else []

    def batches_touch(
        self, old: Snapshot, batch_id: bytes, abandon: float, producer: bytes | None, settled: int | None,
        stored: int | None, reserved: int | None,
    ) -> list[Record]:  # fmt: skip
        batch = self._fills(batch_id, producer)
        if batch is None:
            return []
        self.tables.batches[batch_id] = batch._replace(
            silent_us=self._after(abandon), signed_us=self.now_us(),
            settled=batch.settled if settled is None else settled, stored=batch.stored if stored is None else stored,
            reserved=batch.reserved if reserved is None else reserved,
        )  # fmt: skip
        return [Record(cancel_requested=batch.cancel_requested)]

    def batches_close(
        self, old: Snapshot, batch_id: bytes, size: int, producer: bytes | None, given: int
    ) -> list[Record]:
        batch = self._fills(batch_id, producer)
        if batch is None:
            return []
        self.tables.batches[batch_id] = batch._replace(
            state="CLOSED", size=size, closed_us=self.now_us(), look_us=self._look(self.batch_look_us, batch.expires_us),
            silent_us=None, settled=given, stored=size, reserved=given,
        )  # fmt: skip
        return [Record(id=batch_id)]

    def batches_tally(
        self, old: Snapshot, agent_id: bytes, ranges: Sequence[bytes], ended: Sequence[int]
    ) -> list[Record]:
        written = 0
        for lowest, count in zip(ranges, ended, strict=True):
            batch = self.tables.batches.get(self.tables.batch_ranges.get(lowest, b""))
            if batch is not None and batch.look_us is not None:
                before = self.tables.batch_tallies.get((lowest, agent_id), (0, 0))[0]
                self.tables.batch_tallies[lowest, agent_id] = (before + count, self.now_us())
                written += 1
        return [Record(written=written)]

    def batches_full(self, old: Snapshot, ranges: Sequence[bytes]) -> list[Record]:
        found = {self.tables.batch_ranges[lowest] for lowest in ranges if lowest in self.tables.batch_ranges}
        return [
            Record(batch=batch_id)
            for batch_id in sorted(found)
            if ((batch := self.tables.batches[batch_id]).state == "CLOSED" or "batch conclusion" in self.without)
            and batch.size <= self._tallied(batch_id)
            and not any(inner.look_us is not None for inner in self._inside(batch_id))
        ]

    def _tallied(self, batch_id: bytes) -> int:
        ranges = self._ranges(batch_id)
        return sum(ended for (lowest, _), (ended, _) in self.tables.batch_tallies.items() if lowest in ranges)

    def _ranges(self, batch_id: bytes) -> set[bytes]:
        return {lowest for lowest, owner in self.tables.batch_ranges.items() if owner == batch_id}

    def _inside(self, batch_id: bytes) -> list[BatchRow]:
        return [row for row in self.tables.batches.values() if row.parent == batch_id]

    def _children(self, batch_id: bytes) -> list[JobRow]:
        ranges = self._ranges(batch_id)
        return [row for job_id, row in sorted(self.tables.jobs.items()) if range_of(job_id) in ranges]

    def _counted(self, batch_id: bytes) -> Counter[str]:
        """By state, with the jobs that have left the master, and those in quarantine."""
        ranges = self._ranges(batch_id)
        states = Counter(row.state for row in self._children(batch_id))
        for (lowest, state), jobs in self.tables.batch_dropped.items():
            if lowest in ranges:
                states[state] += jobs
        states["FAILED"] += len(
            {
                job_id
                for job_id, _ in self.tables.quarantine
                if range_of(job_id) in ranges and job_id not in self.tables.jobs and job_id >= self.tables.floor
            }
        )
        return states

    def drop_row(self, job_id: bytes) -> str:
        """A finished row leaves the master; how it ended."""
        state = self.tables.jobs.pop(job_id).state
        lowest = range_of(job_id)
        batch = self.tables.batches.get(self.tables.batch_ranges.get(lowest, b""))
        if batch is not None and batch.look_us is not None and "batch drop" not in self.without:
            self.tables.batch_dropped[lowest, state] = self.tables.batch_dropped.get((lowest, state), 0) + 1
            self.hits["batch: a job of one that goes on is archived"] += 1
        return state

    def batches_progress(self, old: Snapshot, batch_id: bytes) -> list[Record]:
        states = self._counted(batch_id)
        return [
            Record(
                succeeded=states["SUCCEEDED"], failed=states["FAILED"], cancelled=states["CANCELLED"],
                expired=states["EXPIRED"], held=states["HELD"] + states["WAITING"],
                in_flight=states["ASSIGNED"] + states["PROCESSING"],
            )
        ]  # fmt: skip

    def batches_conclude(
        self, old: Snapshot, batch_id: bytes, reason: str, complete_id: bytes, other_id: bytes
    ) -> list[Record]:
        batch = self.tables.batches.get(batch_id)
        if batch is None:
            return []
        states = self._counted(batch_id)
        succeeded, cancelled, expired = states["SUCCEEDED"], states["CANCELLED"], states["EXPIRED"]
        failed = states["FAILED"]
        unfinished = sum(count for state, count in states.items() if state not in FINAL)
        ended, inside = succeeded + failed + cancelled + expired, self._inside(batch_id)
        if reason:
            concludes = batch.state in ("OPEN", "CLOSED") or "batch conclusion" in self.without
        else:
            stands = batch.state == "CLOSED" or ("batch conclusion" in self.without and batch.ended_us is not None)
            counted = (ended >= batch.size and not unfinished) or "batch count" in self.without
            concludes = stands and counted and not any(row.look_us is not None for row in inside)
        if not concludes:
            return []
        size = max(0 if batch.state == "OPEN" else batch.size, ended + unfinished)
        unsuccessful = failed + cancelled + expired + sum(row.state in ("FAILED", "CANCELLED") for row in inside)
        self.audit.batch_ends(self.tables, batch_id, reason)
        state = "CANCELLED" if batch.cancel_requested else "SUCCEEDED" if not reason and not unsuccessful else "FAILED"
        missing = 0 if batch.state == "OPEN" else max(size - ended - unfinished, 0)
        fired, callbacks = [], []
        for each in batch.callbacks:
            if each.occasion in _FOLLOWS[state]:
                job_id = complete_id if each.occasion == "complete" else other_id
                self.audit.called_back(batch_id, each.occasion, job_id)
                self._insert(
                    job_id, "HELD", each.priority, each.lane, each.handler, 1, None, None, self.now_us(), each.args,
                    each.headers,
                )  # fmt: skip
                fired.append((each.lane, each.priority))
                callbacks.append(each._replace(job_id=job_id))
            else:
                callbacks.append(each)
        self.tables.batches[batch_id] = batch._replace(
            state=state, reason=reason, ended_us=self.now_us(), look_us=None, silent_us=None, size=size,
            counts=(succeeded, failed, cancelled, expired, unfinished, missing), callbacks=tuple(callbacks),
        )  # fmt: skip
        fired.sort()
        self.hits[f"batch: {state.lower()}"] += 1
        return [
            Record(
                state=state, name=batch.name, parent=batch.parent, lanes=[lane for lane, _ in fired],
                priorities=[priority for _, priority in fired],
            )
        ]  # fmt: skip

    def batches_wanted(self) -> bool:
        """Of the leader's tick."""
        now = self.now_us()
        looks = any(row.look_us is not None and row.look_us <= now for row in self.tables.batches.values())
        return looks or bool(self.tables.batch_notes)

    def batches_due(self, old: Snapshot, limit: int, lost: float) -> list[Record]:
        now = self.now_us()
        due = sorted(
            (row for row in self.tables.batches.values() if row.look_us is not None and row.look_us <= now),
            key=lambda row: row.look_us or 0,
        )[:limit]
        found = []
        for row in due:
            ranges = self._ranges(row.id)
            noted = [at for (lowest, _), (_, at) in self.tables.batch_tallies.items() if lowest in ranges]
            last = max([row.created_us, row.closed_us or 0, *noted])
            found.append(
                Record(
                    batch=row.id, state=row.state, cancel_requested=row.cancel_requested,
                    abandoned=row.state == "OPEN" and row.silent_us is not None and row.silent_us < now,
                    expired=row.expires_us is not None and row.expires_us < now,
                    quiet_seconds=(now - last) / 1e6, lost=False,
                    inner_left=row.cancel_requested
                    and any(each.look_us is not None and not each.cancel_requested for each in self._inside(row.id)),
                )
            )  # fmt: skip
        return found

    def batches_postpone(self, old: Snapshot, batch_id: bytes, seconds: float) -> list[Record]:
        batch = self.tables.batches.get(batch_id)
        if batch is None or batch.look_us is None:
            return []
        look_us = self._look(int(seconds * 1e6), batch.expires_us, batch.silent_us)
        self.tables.batches[batch_id] = batch._replace(look_us=look_us)
        return [Record(batch=batch_id)]

    def batches_request_cancel(self, old: Snapshot, batch_id: bytes, actor: str) -> list[Record]:
        batch = self.tables.batches.get(batch_id)
        if batch is None or batch.look_us is None:
            return []
        self.tables.pause_version = max(self.tables.pause_version + 1, self.now_us())
        covered = [batch]
        for each in covered:
            covered += [inner for inner in self._inside(each.id) if inner.look_us is not None]
        for each in covered:
            self.tables.batches[each.id] = each._replace(cancel_requested=True, look_us=self.now_us())
        self.hits["batch: cancel"] += 1
        inner_ids = sorted(each.id for each in covered[1:])
        return [Record(batch=each) for each in (batch_id, *inner_ids)]

    def batches_cancel_page(self, old: Snapshot, batch_id: bytes, after: bytes | None, limit: int) -> list[Record]:
        batch = self.tables.batches.get(batch_id)
        if batch is None or not batch.cancel_requested:
            return [Record(last_id=None, jobs=0)]
        page = [
            row
            for row in self._children(batch_id)
            if row.id > (after or b"") and not row.cancel_requested and row.state not in FINAL
        ][:limit]
        for row in page:
            ends = row.state in _WAITS
            self._put(
                row._replace(
                    state="CANCELLED" if ends else row.state, cancel_requested=True, expires_us=None,
                    changed_us=self.now_us() if ends else row.changed_us,
                )
            )  # fmt: skip
        return [Record(last_id=page[-1].id if page else None, jobs=len(page))]

    def maintenance_forget_batches(self, old: Snapshot, days: float, limit: int) -> list[Record]:
        batches, before = self.tables.batches, self.now_us() - int(days * 86_400_000_000)
        going_on = {row.id for row in batches.values() if row.look_us is not None}
        gone = [
            row.id
            for row in batches.values()
            if row.ended_us is not None and row.ended_us < before and row.parent not in going_on
        ][:limit]
        for batch_id in gone:
            for lowest in self._ranges(batch_id):
                del self.tables.batch_ranges[lowest]
                for key in [key for key in self.tables.batch_dropped if key[0] == lowest]:
                    del self.tables.batch_dropped[key]
            del batches[batch_id]
        return [Record(forgotten=len(gone))]

    def batches_callbacks(self, old: Snapshot, batch_id: bytes) -> list[Record]:
        batch = self.tables.batches.get(batch_id)
        rows = sorted(batch.callbacks) if batch is not None else []
        return [
            Record(occasion=row.occasion, priority=row.priority, lane=row.lane, handler=row.handler, args=row.args,
                   headers=row.headers)
            for row in rows
        ]  # fmt: skip

    def batches_list(
        self, old: Snapshot, batch_id: bytes | None, states: Sequence[str], name: str | None, before: bytes | None,
        limit: int, retry_of: bytes | None, key: str | None,
    ) -> list[Record]:  # fmt: skip
        wanted = None if batch_id is None else self.tables.batch_ranges.get(batch_id, b"")
        chosen = [
            row
            for row in sorted(self.tables.batches.values(), key=lambda row: row.id, reverse=True)
            if (wanted is None or row.id == wanted)
            and (not states or row.state in states)
            and (name is None or row.name == name)
            and (before is None or row.id < before)
            and (retry_of is None or row.retry_of == retry_of)
            and (key is None or row.key == key)
        ]
        return [self._listed(row) for row in chosen[:limit]]

    def _listed(self, row: BatchRow) -> Record:
        names = ("succeeded", "failed", "cancelled", "expired", "unfinished", "missing")
        callbacks = sorted(row.callbacks)
        return Record(
            id=row.id, parent=row.parent, retry_of=row.retry_of, name=row.name, key=row.key, description=row.description,
            state=row.state, size=row.size, nested=len(self._inside(row.id)), reason=row.reason,
            cancel_requested=row.cancel_requested, created_us=row.created_us, closed_us=row.closed_us,
            ended_us=row.ended_us, expires_us=row.expires_us,
            **dict(zip(names, row.counts or (None,) * len(names), strict=True)),
            tallied=self._tallied(row.id), ranges=sorted(self._ranges(row.id)),
            callbacks=[each.occasion for each in callbacks], callback_jobs=[each.job_id for each in callbacks],
        )  # fmt: skip
