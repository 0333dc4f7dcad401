"""Ports of clients: what producers and waiters call of the master and of the agent stores.

A consumer that calls few methods of a part has a slice of it, as in ``jobmaster.ports.master`` and ``jobmaster.ports.store``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol, Self

from jobmaster.model.agent import Agent, HandlerSpec
from jobmaster.model.flow.lock import LockView, OnceView
from jobmaster.model.flow.tenant import TenantView
from jobmaster.model.ids import Identity
from jobmaster.model.job import Entry, JobState, NewJob
from jobmaster.model.job_change import ChangedRow, NewValues
from jobmaster.model.job_view import Attempt, JobFilter, JobView
from jobmaster.model.pause import PauseFollower, PauseKind
from jobmaster.model.trace_context import TraceContext
from jobmaster.ports.batches import ClientBatches
from jobmaster.ports.breakers import ClientBreakers
from jobmaster.ports.bulk_operations import ClientBulk
from jobmaster.ports.events import ClientEvents
from jobmaster.ports.inspection import InspectionQueries
from jobmaster.ports.job_logs import ReadJobLogs
from jobmaster.ports.job_rows import Release
from jobmaster.ports.limits import ClientLimits
from jobmaster.ports.master import BucketQueries, ListBuckets, PauseReader
from jobmaster.ports.master_answers import CountStep, EndedRow, JobsStep, LockAnswer, SentBefore, Written, WrittenPause
from jobmaster.ports.operating import OperatingMaster, OperatingStore
from jobmaster.ports.schedules import ClientSchedules
from jobmaster.ports.signals import ClientSignals
from jobmaster.ports.store import AntiEntropyStore, FindStore, HintStore
from jobmaster.ports.store_answers import Recall, ReplyStatus, StoreHealth, Submitted
from jobmaster.ports.uniqueness import UniqueKeys, Uniqueness
from jobmaster.ports.workflows import WorkflowsPort
from jobmaster.rules.unserved_cause import UnservedCause

# ------------------------------------------------------------ the master


class Intake(Protocol):
    """First rows, from producers and flushes."""

    async def insert_held(self, jobs: Sequence[NewJob]) -> Written:
        """HELD rows with token 1; an id that exists is *refused* (the caller compares with ``get`` when it matters)."""
        ...

    async def insert_held_in(self, connection: Any, jobs: Sequence[NewJob]) -> Written:
        """``insert_held`` inside the caller's own transaction on ``connection``."""
        ...

    @property
    def submit_sql(self) -> str:
        """A call of the SQL function ``submit``, with the parameters ``$1`` handler, ``$2`` arguments and ``$3`` options."""
        ...

    async def insert_assigned(self, bucket_id: bytes, epoch: int, jobs: Sequence[NewJob]) -> Written:
        """ASSIGNED rows with token 2, under the bucket lock (bucket ACTIVE, this epoch)."""
        ...

    async def reserve_keys(
        self, scope: str, keys: Sequence[tuple[str, bytes, bytes]]
    ) -> list[tuple[str, bytes, bytes]]:
        """Idempotency: ``(key, job_id, digest)`` in, the *holding* ``(key, job_id, digest)`` of each key out, in order."""
        ...


class SubmitSpan(Protocol):
    """The span of one call that submits jobs. A ``with`` of it makes it the current one, and ends it."""

    recorded: bool
    """False: the span is not in the sample; nothing has to be told of it."""

    @property
    def context(self) -> TraceContext | None:
        """The span as the headers of a job have it."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None: ...

    def end(self) -> None:
        """The call has ended."""
        ...

    def failed(self, error: BaseException) -> None:
        """The call has ended with this error."""
        ...

    def stored(self, job_id: str, level: str) -> None:
        """The job is stored."""
        ...

    def counted(self, jobs: int) -> None:
        """So many jobs are stored."""
        ...


class SubmitTraces(Protocol):
    """Traces, as far as submits need them."""

    def context(self) -> TraceContext | None:
        """The current span; ``None`` without one."""
        ...

    def begin(self, handler: str | None) -> SubmitSpan:
        """Begin the span of a call that submits jobs of a handler, or of several (``None``)."""
        ...

    def continued(self, headers: Mapping[str, str]) -> AbstractContextManager[None]:
        """What is submitted inside belongs to the trace that the headers of a request name, if they name one."""
        ...


class Requests(Protocol):
    """Requests of clients and operators about one job."""

    async def cancel(self, job_id: bytes, *, tombstone: NewJob | None, actor: str) -> JobState | None:
        """HELD -> CANCELLED; in flight -> a flag; no row and a tombstone -> a CANCELLED row; no row and no tombstone ->
        ``None``. Returns the state after the call."""
        ...

    async def confirm(
        self, job_id: bytes, identity: Identity, result: bytes | None, actor: str
    ) -> tuple[bool, JobState | None]:
        """Confirm a run from outside: whether it is confirmed now, and the state of the job (``None``: no row)."""
        ...

    async def note(self, actor: str, action: str, acts: Mapping[str, Mapping[str, object]]) -> None:
        """A line of the operator log for each subject of an action that has no line of its own."""
        ...

    async def note_once(self, actor: str, action: str, subject: str, detail: Mapping[str, object]) -> None:
        """A line of the operator log, unless there is one of this action and detail."""
        ...


class Changes(Protocol):
    """Changes of jobs that wait: due time, priority and lane."""

    async def change_held(self, job_id: bytes, new: NewValues, actor: str) -> ChangedRow | None:
        """A HELD row gets the new values; ``None``: it is not HELD, or expires before it would be due."""
        ...

    async def assign_copy(self, bucket_id: bytes, epoch: int, priority: int, lane: str, copy: Entry) -> bool:
        """A job without a row gets one: ASSIGNED, under the identity of its copy in an ACTIVE bucket of this epoch;
        ``False``: it has a row, or the bucket takes none."""
        ...

    async def hold_recalled(self, job_id: bytes, identity: Identity, new: NewValues, actor: str) -> ChangedRow | None:
        """An ASSIGNED row of this identity -> HELD with the new values, or CANCELLED after a cancel request; ``None``: it has
        another identity or state."""
        ...


class StateQueries(Protocol):
    """States of jobs."""

    async def states(self, job_ids: Sequence[bytes]) -> dict[bytes, JobState]:
        """States of the jobs that have a row."""
        ...


class TenantQueries(Protocol):
    """Reads of tenants."""

    async def tenants(self, lane: str | None, limit: int) -> list[TenantView]:
        """Tenants with due jobs that wait in the master, or jobs in flight, the one with the most waiting jobs first."""
        ...


class Queries(ListBuckets, BucketQueries, StateQueries, TenantQueries, Protocol):
    """Reads of clients and agents."""

    async def get(self, job_id: bytes) -> JobView | None:
        """One job; ``None`` when it has no row."""
        ...

    async def jobs(
        self, chosen: JobFilter, lowest: bytes, highest: bytes, *, reads: int, limit: int, payload: bool
    ) -> JobsStep:
        """The newest jobs of a range of ids that fit: one step, which reads at most ``reads`` rows."""
        ...

    async def jobs_of(self, chosen: JobFilter, job_ids: Sequence[bytes], *, payload: bool) -> list[JobView]:
        """Those of some jobs that fit, newest first."""
        ...

    async def count(self, chosen: JobFilter, lowest: bytes, highest: bytes, *, reads: int, limit: int) -> CountStep:
        """How many jobs of a range of ids fit: one step, which reads at most ``reads`` rows and counts at most ``limit``."""
        ...

    async def waiting_ids(self, chosen: JobFilter, limit: int) -> list[bytes] | None:
        """Jobs in the states of a filter, of its lane and priority and due in its time, by the indexes of these: at most
        ``limit``. ``None``: a state of the filter has no index."""
        ...

    async def id_ranges(self, batch: bytes | None, workflow: bytes | None) -> list[tuple[bytes, bytes]]:
        """Lowest and highest id of each range in which the jobs of a batch, or of a workflow, lie; the newest first."""
        ...

    async def attempts(self, job_id: bytes) -> list[Attempt]:
        """Every recorded line of a job, oldest first, the concluding one last."""
        ...

    async def ended(self, job_ids: Sequence[bytes]) -> dict[bytes, EndedRow]:
        """Results and errors of the jobs that have a row, by id."""
        ...

    async def now_us(self) -> int:
        """The master's clock."""
        ...

    async def sent_before(self, job_ids: Sequence[bytes], bucket_ids: Sequence[bytes]) -> SentBefore:
        """Rows of these jobs, and whether there are buckets beyond these at the same moment."""
        ...

    async def agents(self, *, all_: bool = False) -> list[Agent]:
        """Living agents; ``all_``: ended agents too."""
        ...

    async def handlers(self) -> dict[str, HandlerSpec]:
        """Published handlers by name."""
        ...

    async def unserved_causes(self, job_ids: Sequence[bytes]) -> dict[bytes, UnservedCause]:
        """The jobs that wait in the master for a handler that no owner has, and what is missing."""
        ...


class Pauses(PauseReader, Protocol):
    """Pauses of handlers, lanes, priorities and tags."""

    async def pause(
        self, kind: PauseKind, value: str, until_us: int | None, for_seconds: float | None, actor: str, reason: str
    ) -> WrittenPause | None:
        """Pause, or change such a pause, with a line in the operator's log. ``None``: the end is not in the future by the
        master's clock, and nothing is written.

        Args:
            until_us: end of the pause, microseconds since 1970.
            for_seconds: its end, in seconds from now by the master's clock. At most one of both is given.
        """
        ...

    async def resume(self, kind: PauseKind, value: str, actor: str, reason: str) -> int | None:
        """End a pause, with a line in the operator's log; the version, ``None`` when there was none."""
        ...

    async def followers(self, version: int) -> list[PauseFollower]:
        """The living agents that run jobs, and which of them obey this version."""
        ...


class Locks(Protocol):
    """Named locks, and actions that run once. Only the master's clock decides when a lock ends."""

    async def acquire(self, name: str, acquisition: bytes, label: str, ttl_seconds: float) -> LockAnswer:
        """Take the lock when it is given back, has expired, or is held by this ``acquisition`` (a fresh id for each attempt
        to lock; sent again after a lost answer, it returns the same fencing number)."""
        ...

    async def renew(self, name: str, fence: int, ttl_seconds: float) -> bool:
        """Extend the lock; False when this fencing number does not hold it any more."""
        ...

    async def release(self, name: str, acquisition: bytes) -> None:
        """Give the lock back, if this acquisition holds it."""
        ...

    async def revoke(self, name: str, actor: str) -> LockView | None:
        """Take the lock from its holder, with a line in the operator's log; the lock as it was, ``None``: it was free."""
        ...

    async def held(self, limit: int, name: str | None = None) -> list[LockView]:
        """Locks that have a holder, by name; or the one of a name."""
        ...

    async def is_done(self, name: str, version: str) -> bool:
        """Whether an action has been done for this version."""
        ...

    async def begin(self, name: str, version: str, lock_name: str, fence: int) -> bool:
        """Record that the holder of the lock begins to run the action; False when it is not the holder any more."""
        ...

    async def fail(self, name: str, version: str, fence: int, error: str) -> None:
        """Record why an attempt failed, unless another one has begun."""
        ...

    async def record(self, name: str, version: str, lock_name: str, fence: int) -> bool:
        """Record that the holder of the lock has done the action; False when it is not the holder any more."""
        ...

    async def actions(self, limit: int) -> list[OnceView]:
        """Actions that run, then those that have failed, then those that have been done; of each the latest first."""
        ...


class LookupMaster(Protocol):
    """For the look-up of one job."""

    @property
    def queries(self) -> Queries: ...

    @property
    def requests(self) -> Requests: ...


class ChangeMaster(Protocol):
    """For changes of one job."""

    @property
    def queries(self) -> Queries: ...

    @property
    def changes(self) -> Changes: ...


class PlacementMaster(Protocol):
    """For jobs that a producer puts into a bucket through the master."""

    @property
    def intake(self) -> Intake: ...

    @property
    def onboarding(self) -> Release: ...


class ScheduleMaster(Protocol):
    """For the schedules of a client."""

    @property
    def queries(self) -> Queries: ...

    @property
    def schedules(self) -> ClientSchedules: ...


class InspectionMaster(Protocol):
    """The master, as far as an inspection reads it."""

    @property
    def queries(self) -> Queries: ...

    @property
    def inspection(self) -> InspectionQueries: ...

    @property
    def pauses(self) -> PauseReader: ...

    @property
    def uniqueness(self) -> UniqueKeys: ...


class ClientMaster(LookupMaster, ChangeMaster, PlacementMaster, ScheduleMaster, OperatingMaster, Protocol):
    """For clients."""

    @property
    def uniqueness(self) -> Uniqueness: ...

    @property
    def limits(self) -> ClientLimits: ...

    @property
    def pauses(self) -> Pauses: ...

    @property
    def locks(self) -> Locks: ...

    @property
    def signals(self) -> ClientSignals: ...

    @property
    def breakers(self) -> ClientBreakers: ...

    @property
    def workflows(self) -> WorkflowsPort: ...

    @property
    def batches(self) -> ClientBatches: ...

    @property
    def bulk(self) -> ClientBulk: ...

    @property
    def job_logs(self) -> ReadJobLogs: ...

    @property
    def events(self) -> ClientEvents: ...

    @property
    def inspection(self) -> InspectionQueries: ...


# ------------------------------------------------------------ agent stores


class PlacementStore(Protocol):
    """For the choice of a bucket and its store."""

    async def submit(
        self, bucket_id: bytes, items: Sequence[bytes], *, high_water_jobs: int, high_water_bytes: int, skew_ms_max: int
    ) -> Submitted:
        """Append encoded entries to ``pending`` and leave a wake token; all or none."""
        ...

    async def put(
        self,
        bucket_id: bytes,
        epoch: int,
        items: Sequence[tuple[int, bytes]],
        *,
        high_water_jobs: int,
        high_water_bytes: int,
    ) -> Submitted:
        """``(due_us, encoded entry)`` into ``assigned`` of an ACTIVE bucket of this epoch (a master submit due now); all or
        none."""
        ...

    async def health(self) -> StoreHealth:
        """Version, eviction, log and generation, as the store reports them now."""
        ...


class LookupStore(FindStore, Protocol):
    """For the look-up of one job that may have no row."""

    async def is_claimed(self, bucket_id: bytes, job_id: bytes, scan_max: int) -> bool:
        """True when the copy that ``find`` returns has been claimed: an agent has it in memory."""
        ...

    async def request_cancel(self, bucket_id: bytes, job_id: bytes) -> ReplyStatus:
        """Request that the bucket's owner cancels a job; a wake token makes it read the request at once."""
        ...


class ChangeStore(HintStore, Protocol):
    """For changes of one job."""

    async def recall(self, job_id: bytes, identity: Identity, due_us: int, scan_max: int) -> Recall:
        """Take the copy of this identity out of its bucket, unless it has been claimed.

        Args:
            due_us: its due time, 0 = at once.
            scan_max: how many of the jobs that wait without a row are looked through.
        """
        ...


class FinishedStore(Protocol):
    """For the wait for results."""

    def finished(self) -> AsyncIterator[bytes]:
        """Ids that just got a row or an outcome in the master, as published by agents on this store; the first item is
        empty and means that the subscription is established."""
        ...


class ClientStore(PlacementStore, AntiEntropyStore, LookupStore, ChangeStore, FinishedStore, OperatingStore, Protocol):
    """For clients."""
