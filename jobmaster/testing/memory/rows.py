"""The jobs of a cluster in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from jobmaster.clock import new_id
from jobmaster.codec import decode_error, decode_headers, encode_error
from jobmaster.handlers import Handlers
from jobmaster.model import ids
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.flow.signal import KeptSignal, OutgoingSignal, SignalStep
from jobmaster.model.flow.uniqueness import UniqueTerm
from jobmaster.model.job import AttemptOutcome, Entry, ErrorInfo, FinalRow, HoldRow, JobState, NewJob, Priority
from jobmaster.model.job_change import ChangedRow, NewValues
from jobmaster.model.job_view import Attempt, JobView, moment
from jobmaster.model.pause import Pause, PauseKind
from jobmaster.model.run_progress import RunProgress
from jobmaster.model.schedule import Fire, ScheduleRow
from jobmaster.settings.model import ClusterSettings
from jobmaster.testing.memory.batches import MemoryBatches
from jobmaster.testing.memory.breakers import MemoryBreakers
from jobmaster.testing.memory.clock import MemoryClock
from jobmaster.testing.memory.job_logs import MemoryJobLogs
from jobmaster.testing.memory.locks import MemoryLocks

EPOCH = 1
"""Epoch of every bucket: no bucket changes its owner."""
_OUTCOME_OF = {"timeout": AttemptOutcome.TIMED_OUT, "snoozed": AttemptOutcome.SNOOZED}
"""Reason of an error -> outcome of its attempt."""
_NO_SIGNAL = encode_error(
    ErrorInfo(type="NoSignal", message="the signal that the job waited for has not come in time", reason="no_signal")
)
_WAITS = frozenset({JobState.SAVE_PENDING, JobState.HELD, JobState.ASSIGNED})


class Unconfirmed(NamedTuple):
    """What follows when the confirmation of a run does not come in time."""

    until_us: int
    pause_us: int
    """Until the next attempt."""
    error: bytes | None
    """Of the job; ``None``: it has another attempt."""


class HeldKey(NamedTuple):
    """A unique key and its holder."""

    job_id: bytes
    term: UniqueTerm
    held_us: int
    until_us: int


class MemoryJob:
    """One job."""

    def __init__(
        self, clock: MemoryClock, entry: Entry, priority: int, lane: str, state: JobState, bucket_id: bytes | None
    ) -> None:
        self._clock = clock
        self.entry = entry
        self.priority = priority
        self.lane = lane
        self._state = state
        self.changed_us = clock.wall_us()
        self.attempts: list[Attempt] = []
        """The lines of those that are over, the concluding one included."""
        self.bucket_id = bucket_id
        self.cancel_requested = False
        self.result: bytes | None = None
        self.error: bytes | None = None
        self.waited_us: int | None = None
        self.ran_us: int | None = None
        self.raised: BaseException | None = None
        """What its handler raised last."""
        self.unconfirmed: Unconfirmed | None = None
        """WAITING: what follows when no confirmation comes."""
        self._signal_until_us: int | None = None
        """WAITING for a signal: the end of the wait."""

    @property
    def state(self) -> JobState:
        """Where it stands."""
        return self._state

    @state.setter
    def state(self, state: JobState) -> None:
        self._state, self.changed_us = state, self._clock.wall_us()
        if state.final:
            self._note(state.value, self.error, concluding=True)

    @property
    def due_us(self) -> int:
        """When it may run; its creation when it is due at once."""
        return self.entry.due_us or ids.created_ms(self.entry.id) * 1000

    @property
    def waits(self) -> bool:
        """True until an attempt begins."""
        return self.state in _WAITS

    def is_covered(self, pause: Pause) -> bool:
        """The pause keeps it from starting; one whose cancellation was requested ends all the same."""
        if self.cancel_requested:
            return False
        tags = decode_headers(self.entry.headers).tags if self.entry.headers else ()
        return pause.covers(self.entry.handler, self.lane, Priority(self.priority).label, tags)

    def concluded(self, row: FinalRow) -> None:
        """Its outcome; a job that has one, by a confirmation from outside, keeps it."""
        if self.state.final:
            return
        self.result, self.error = row.result, row.error
        self.waited_us, self.ran_us = row.waited_us, row.ran_us
        self.entry = Entry(
            row.id, row.token, row.handler, row.args, row.due_us, row.headers, row.attempt, row.rescues
        )  # fmt: skip
        self.state = JobState(row.state)

    def held(self, row: HoldRow, *, here: bool) -> None:
        """It waits for another attempt, in its bucket or in the master."""
        if self.state.final:
            return
        if row.error is not None:
            self.ran_us = row.ran_us
            reason = decode_error(row.error).reason
            self._note(_OUTCOME_OF.get(reason, AttemptOutcome.FAILED), row.error, concluding=False)
        token = row.token + 1 if here else row.token
        self.entry = Entry(row.id, token, row.handler, row.args, row.due_us, row.headers, row.attempt, row.rescues)
        self.state = JobState.ASSIGNED if here else JobState.HELD
        self.error = row.error
        if self.cancel_requested:
            self.state = JobState.CANCELLED

    def cancel(self) -> JobState:
        """Cancel it: one that waits ends, one that runs gets a request; its state after that."""
        if self.waits or self.state is JobState.WAITING:
            self.state = JobState.CANCELLED
        elif not self.state.final:
            self.cancel_requested = True
        return self.state

    def await_signal(self) -> None:
        """It waits for the signal of its headers before its first run."""
        headers = decode_headers(self.entry.headers)
        assert headers.signal is not None, "a job that waits for a signal names it"
        ends = [headers.expires_us] if headers.expires_us is not None else []
        if headers.signal.seconds is not None:
            ends.append(self._clock.wall_us() + int(headers.signal.seconds * 1e6))
        self._signal_until_us = min(ends, default=None)
        self.state = JobState.WAITING

    @property
    def signal_key(self) -> str | None:
        """The key of the signal that it waits for; ``None``: it waits for none."""
        if self.state is not JobState.WAITING or self.unconfirmed is not None:
            return None
        signal = decode_headers(self.entry.headers).signal
        return None if signal is None else signal.key

    def _lapse_signal(self, until_us: int) -> None:
        """The signal has not come in time: it ends, or runs without it."""
        ends_us = self._signal_until_us
        if ends_us is None or ends_us > until_us or self.signal_key is None:
            return
        headers, self._signal_until_us = decode_headers(self.entry.headers), None
        if headers.signal is not None and headers.signal.run and headers.expires_us != ends_us:
            self.entry = msgspec.structs.replace(self.entry, due_us=max(self.entry.due_us, ends_us))
            self.state = JobState.HELD
        else:
            self.error = _NO_SIGNAL
            self.state = JobState.EXPIRED

    def lapse(self, until_us: int) -> None:
        """A run that was not confirmed in time has failed; a wait for a signal is over."""
        self._lapse_signal(until_us)
        lapsed = self.unconfirmed
        if self.state is not JobState.WAITING or lapsed is None or lapsed.until_us > until_us:
            return
        entry, self.unconfirmed, self.error = self.entry, None, lapsed.error
        due_us = entry.due_us if lapsed.error else lapsed.until_us + lapsed.pause_us
        self.state = JobState.FAILED if lapsed.error else JobState.HELD
        self.entry = msgspec.structs.replace(entry, attempt=entry.attempt + 1, due_us=due_us)

    def _note(self, outcome: str, error: bytes | None, *, concluding: bool) -> None:
        self.attempts.append(
            Attempt(
                token=self.entry.token,
                bucket_id=self.bucket_id,
                bucket_epoch=EPOCH if self.bucket_id else None,
                concluding=concluding,
                outcome=outcome,
                at_us=self._clock.wall_us(),
                ran_us=self.ran_us,
                error=None if error is None else decode_error(error),
            )
        )

    def view(self) -> JobView:
        """The job as the master shows it."""
        entry = self.entry
        return JobView(
            id_bytes=entry.id,
            state=self.state,
            priority=Priority(self.priority),
            lane=self.lane,
            handler=entry.handler,
            token=entry.token,
            attempt=entry.attempt,
            rescues=entry.rescues,
            bucket_id=self.bucket_id,
            bucket_epoch=EPOCH if self.bucket_id else None,
            cancel_requested=self.cancel_requested,
            due_us=entry.due_us or None,
            changed_us=self.changed_us,
            waited_us=self.waited_us,
            ran_us=self.ran_us,
            arguments_json=entry.args,
            headers_json=entry.headers,
            result_json=self.result,
            error=None if self.error is None else decode_error(self.error),
        )


class MemoryProgress:
    """``jobmaster.handlers.context.ProgressSink`` of the cluster in memory."""

    def __init__(self, rows: MemoryRows) -> None:
        self._rows = rows

    def note(self, job_id: bytes, token: int, progress: RunProgress) -> None:
        """Keep a report; it can be read at once."""
        self._rows.progress[job_id] = msgspec.structs.replace(progress, at=moment(self._rows.clock.wall_us()))


class MemoryRows:
    """Every job of one cluster in memory, and its buckets: one of each lane and priority that the configuration serves.

    Clusters on several event loops and threads may share it.
    """

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings
        self.clock = MemoryClock()
        self.lock = threading.RLock()
        self.jobs: dict[bytes, MemoryJob] = {}
        """By id, in the order of their submits."""
        self.keys: dict[tuple[str, str], tuple[bytes, bytes]] = {}
        """Handler and idempotency key -> the holder and its digest."""
        self.unique_keys: dict[tuple[str, str], HeldKey] = {}
        """Handler and unique key -> the holder."""
        self.pauses: dict[tuple[PauseKind, str], Pause] = {}
        self.pause_version = 0
        self.handlers: Handlers | None = None
        """What agents of the cluster have; ``None``: there is no cluster."""
        self.uncommitted: dict[int, list[NewJob]] = {}
        """Transaction of a caller -> its jobs."""
        self.progress: dict[bytes, RunProgress] = {}
        """Job -> the last report of its handler."""
        self.job_logs = MemoryJobLogs()
        self.locks = MemoryLocks(self.clock)
        self.signals: dict[bytes, tuple[OutgoingSignal, SignalStep]] = {}
        """By id: those that reached a job or were kept, and their answers."""
        self.kept_signals: dict[bytes, KeptSignal] = {}
        """By id, the oldest first."""
        self.batches = MemoryBatches(self)
        self.breakers = MemoryBreakers(self)
        self.schedules: dict[str, ScheduleRow] = {}
        """By name: those of the API, and those of the code that were changed."""
        self.fires: dict[str, list[Fire]] = {}
        """Schedule -> its fires, in order."""
        self.owner = new_id()
        self.buckets: dict[bytes, Bucket] = {}
        self.serve(settings)

    def serve(self, settings: ClusterSettings) -> None:
        """Buckets of the lanes and priorities that these settings serve."""
        with self.lock:
            for agent in settings.agents.values():
                for lane, counts in agent.bucket_counts().items():
                    for priority in Priority:
                        if counts.of(priority) and self.bucket_of(lane, priority) is None:
                            self._open(agent.store, lane, priority)

    def serve_lane(self, lane: str | None) -> None:
        """Buckets of every priority of a lane."""
        with self.lock:
            for priority in Priority:
                if lane is not None and self.bucket_of(lane, priority) is None:
                    self._open(next(iter(self.settings.stores)), lane, priority)

    def bucket_of(self, lane: str, priority: int) -> Bucket | None:
        """The bucket of a lane and priority; ``None``: no agent serves them."""
        return next((one for one in self.buckets.values() if (one.lane, one.priority) == (lane, priority)), None)

    def _open(self, store: str, lane: str, priority: int) -> None:
        bucket = Bucket(
            id=new_id(),
            store=store,
            lane=lane,
            priority=int(priority),
            state=BucketState.ACTIVE,
            epoch=EPOCH,
            owner=self.owner,
        )
        self.buckets[bucket.id] = bucket

    def put(self, bucket_id: bytes, entry: Entry) -> bool:
        """A job that lies in a bucket alone; False: it is there already."""
        bucket = self.buckets[bucket_id]
        with self.lock:
            if entry.id in self.jobs:
                return False
            self.jobs[entry.id] = MemoryJob(
                self.clock, entry, bucket.priority, bucket.lane, JobState.SAVE_PENDING, bucket_id
            )
        return True

    def insert(self, job: NewJob, bucket_id: bytes | None = None) -> bool:
        """A row; False: it is there already."""
        entry = Entry(job.id, 1 if bucket_id is None else 2, job.handler, job.args, job.due_us, job.headers)
        with self.lock:
            if job.id in self.jobs:
                return False
            state = JobState.HELD if bucket_id is None else JobState.ASSIGNED
            self.jobs[job.id] = MemoryJob(self.clock, entry, job.priority, job.lane, state, bucket_id)
        return True

    def paused(self, until_us: int | None = None) -> list[Pause]:
        """The pauses that are in force at a moment; default: now."""
        moment_us = self.clock.wall_us() if until_us is None else until_us
        with self.lock:
            return [
                pause
                for _, pause in sorted(self.pauses.items())
                if pause.until_us is None or pause.until_us > moment_us
            ]

    def change(self, job_id: bytes, new: NewValues) -> ChangedRow | None:
        """A job that waits gets new values, and waits in the master; ``None``: it does not wait, or expires before."""
        with self.lock:
            job = self.jobs.get(job_id)
            if job is None or not job.waits:
                return None
            due_us = job.due_us if new.due_us is None else new.due_us or min(job.due_us, self.clock.wall_us())
            expires_us = decode_headers(job.entry.headers).expires_us
            if expires_us is not None and new.due_us and new.due_us >= expires_us:
                return None
            job.entry = msgspec.structs.replace(job.entry, due_us=due_us)
            job.priority, job.lane = new.priority or job.priority, new.lane or job.lane
            job.bucket_id, job.state = None, JobState.HELD
            return ChangedRow(job.state, due_us, job.priority, job.lane, job.entry.handler)

    def take(self, until_us: int, runnable: Callable[[MemoryJob], bool]) -> MemoryJob | None:
        """The next job that waits and is due until then, marked as running: by due time, priority and age."""
        with self.lock:
            for job in self.jobs.values():
                job.lapse(until_us)
            paused = self.paused(until_us) if self.pauses else []
            broken = self.breakers.waiting(until_us)
            waiting = [
                job
                for job in self.jobs.values()
                if job.waits
                and job.due_us <= until_us
                and runnable(job)
                and not any(map(job.is_covered, paused))
                and (job.entry.handler not in broken or job.cancel_requested)
            ]
            if not waiting:
                return None
            now_us = self.clock.wall_us()
            taken = min(waiting, key=lambda job: (max(job.due_us, now_us), -job.priority, job.due_us, job.entry.id))
            taken.state = JobState.PROCESSING
            return taken

    def any_runs(self, job_ids: set[bytes]) -> bool:
        """An attempt of one of these jobs is under way."""
        return any(self.jobs[job_id].state is JobState.PROCESSING for job_id in job_ids if job_id in self.jobs)

    def save(self, job_ids: set[bytes]) -> None:
        """Jobs that lie in a bucket alone get their rows."""
        with self.lock:
            for job_id in job_ids:
                job = self.jobs.get(job_id)
                if job is not None and job.state is JobState.SAVE_PENDING:
                    job.state = JobState.ASSIGNED
