"""Signals of a cluster in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from jobmaster.codec import decode_headers, encode_headers
from jobmaster.model import ids
from jobmaster.model.flow.signal import KeptSignal, OutgoingSignal, Recipients, SignalStatus, SignalStep, WaitingJobs
from jobmaster.model.job import JobState, NewJob, SignalReceived
from jobmaster.ports import Written

if TYPE_CHECKING:
    from jobmaster.testing.memory.rows import MemoryJob, MemoryRows


class MemorySignals:
    """``jobmaster.ports.ClientSignals`` over rows in memory."""

    def __init__(self, rows: MemoryRows) -> None:
        self._rows = rows

    async def hold_waiting(self, jobs: Sequence[NewJob]) -> Written:
        """Rows that wait; one that finds a kept signal has received it."""
        accepted = frozenset(job.id for job in jobs if self.insert(job))
        return Written(True, accepted, refused=frozenset(job.id for job in jobs) - accepted)

    async def hold_waiting_in(self, connection: Any, jobs: Sequence[NewJob]) -> Written:
        """Rows that count when the caller's transaction is committed, if the cluster made it; else at once."""
        uncommitted = self._rows.uncommitted.get(id(connection))
        if uncommitted is None:
            return await self.hold_waiting(jobs)
        new = [job for job in jobs if job.id not in self._rows.jobs]
        uncommitted += new
        accepted = frozenset(job.id for job in new)
        return Written(True, accepted, refused=frozenset(job.id for job in jobs) - accepted)

    def insert(self, new: NewJob) -> bool:
        """A row that waits; False: it is there already."""
        rows = self._rows
        with rows.lock:
            if not rows.insert(new):
                return False
            job = rows.jobs[new.id]
            job.await_signal()
            kept = next((one for one in self._kept() if one.key == job.signal_key), None)
            if kept is not None:
                if kept.recipients is Recipients.ONE:
                    del rows.kept_signals[kept.id_bytes]
                    sent, step = rows.signals[kept.id_bytes]
                    rows.signals[kept.id_bytes] = sent, step._replace(delivered=1, kept_until_us=None)
                receive(job, kept.id_bytes, kept.payload_json, kept.sent_us)
            return True

    async def send(self, signal: OutgoingSignal, actor: str) -> SignalStep:
        """A signal to the jobs that wait for its key."""
        rows = self._rows
        with rows.lock:
            if (before := rows.signals.get(signal.id)) is not None:
                if before[0][1:4] != signal[1:4]:
                    return before[1]._replace(status=SignalStatus.CONFLICT)
                return before[1]._replace(status=SignalStatus.REPEATED)
            now_us = rows.clock.wall_us()
            waiting = sorted(
                (job for job in rows.jobs.values() if job.signal_key == signal.key), key=lambda job: job.entry.id
            )
            reached = waiting[:1] if signal.recipients == Recipients.ONE else waiting
            for job in reached:
                receive(job, signal.id, signal.payload, now_us)
            kept_until_us = None
            if signal.keep_seconds and (signal.recipients == Recipients.ALL or not reached):
                kept_until_us = now_us + int(signal.keep_seconds * 1e6)
                self._keep(signal, actor, now_us, kept_until_us, len(reached))
            step = SignalStep(SignalStatus.SENT, len(reached), True, kept_until_us)
            if reached or kept_until_us:
                rows.signals[signal.id] = (signal, step)
            return step

    def _keep(self, signal: OutgoingSignal, actor: str, now_us: int, kept_until_us: int, delivered: int) -> None:
        kept, recipients = self._rows.kept_signals, Recipients(signal.recipients)
        if recipients is Recipients.ALL:
            for old in [one for one in kept.values() if (one.key, one.recipients) == (signal.key, recipients)]:
                del kept[old.id_bytes]
        kept[signal.id] = KeptSignal(
            id_bytes=signal.id,
            key=signal.key,
            recipients=recipients,
            payload_json=signal.payload,
            actor=actor,
            sent_us=now_us,
            kept_until_us=kept_until_us,
            delivered=delivered,
        )

    def _kept(self) -> list[KeptSignal]:
        now_us = self._rows.clock.wall_us()
        return [one for one in self._rows.kept_signals.values() if one.kept_until_us > now_us]

    async def kept(self, key: str | None, limit: int) -> list[KeptSignal]:
        """Signals that are kept, the oldest first."""
        with self._rows.lock:
            return [one for one in self._kept() if key in (None, one.key)][:limit]

    async def waiting(self, key: str | None, limit: int) -> list[WaitingJobs]:
        """How many jobs wait for each key, the most first."""
        with self._rows.lock:
            jobs = [
                job for job in self._rows.jobs.values() if job.signal_key is not None and key in (None, job.signal_key)
            ]
            counts = Counter(job.signal_key for job in jobs)
            return [
                WaitingJobs(key=one, jobs=count, since_us=min(job.changed_us for job in jobs if job.signal_key == one))
                for one, count in counts.most_common(limit)
                if one is not None
            ]


def receive(job: MemoryJob, signal_id: bytes, payload: bytes, sent_us: int) -> None:
    """A job that waits receives a signal, and is due."""
    received = SignalReceived(id=ids.text(signal_id), payload=payload.decode(), sent_us=sent_us)
    headers = encode_headers(msgspec.structs.replace(decode_headers(job.entry.headers), received=received))
    job.entry = msgspec.structs.replace(job.entry, headers=headers)
    job.state = JobState.HELD
