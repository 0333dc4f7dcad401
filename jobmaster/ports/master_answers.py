"""Answers of the master."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from jobmaster.model.cluster import ClusterMode
from jobmaster.model.flow.lock import LockView
from jobmaster.model.ids import Identity
from jobmaster.model.job import Entry, ErrorInfo, JobState
from jobmaster.model.job_view import JobView
from jobmaster.model.schedule import FireOutcome, Schedule
from jobmaster.rules.unserved_cause import UnservedCause


class Written(NamedTuple):
    """Answer of a write about jobs, with or without the bucket lock. Each id is in exactly one set, except that a cancelled
    or failed id can also be accepted."""

    bucket_ok: bool
    """False: the bucket lock refused the call; nothing is written and no id is settled. Always True without the lock."""
    accepted: frozenset[bytes]
    """The row now has what was sent, from this call or from an earlier one of the same caller."""
    cancelled: frozenset[bytes] = frozenset()
    """Accepted ids that became CANCELLED instead, because a cancel was requested."""
    refused: frozenset[bytes] = frozenset()
    """The row refused: it has another identity, or it is final. Settled."""
    quarantined: frozenset[bytes] = frozenset()
    """The id itself is refused (below the watermark, outside every partition) and kept in quarantine. Settled."""
    failed: frozenset[bytes] = frozenset()
    """Of a page of a rescuer: accepted ids that became FAILED instead (abandoned, or rescued too often)."""

    @property
    def settled(self) -> frozenset[bytes]:
        """Ids that need not be sent again: each is committed, or refused for good."""
        return self.accepted | self.cancelled | self.refused | self.quarantined


# ------------------------------------------------------------ agents


class Renewal(NamedTuple):
    """Answer of one heartbeat at the master."""

    alive: bool
    """False: the agent has a death certificate, or its row is gone. It must stop at once."""
    drain_requested: bool
    leader: bytes | None
    """Id of the leader; ``None`` when no agent holds an unexpired lease."""
    lost_stores: Sequence[str]
    """Stores with a LOST bucket: any healthy agent that has such a store should try to rescue."""
    cancel_requested: list[bytes]
    """Ids of in-flight jobs of this agent with a cancel request."""
    frozen: Sequence[bytes] = ()
    """Buckets of this agent that an operator has frozen."""
    at_work: int | None = None
    """Number of ACTIVE, COMPLETING and FROZEN buckets of this agent in the master; ``None``: not in the answer."""
    epochs: int = 0
    """Sum of their epochs. Epochs only grow, so equal sums of the same buckets mean equal epochs."""
    agents: int = 1
    """Living agents of the cluster: with many of them each renews less often."""
    helps: frozenset[tuple[str, int]] = frozenset()
    """Lanes and priorities without an owner, in which this agent is requested to have a bucket."""
    now_us: int | None = None
    """Clock of the master; ``None``: not in the answer."""
    pauses: int | None = None
    """Version of the pauses; ``None``: not in the answer."""
    pauses_obeyed: int | None = None
    """The version that the master has of this agent; ``None``: none, or not in the answer."""
    mode: ClusterMode = ClusterMode.ACTIVE
    """In another mode the agent owns no buckets."""


class HostCordon(NamedTuple):
    """The standing of a host whose agents died again and again."""

    host: str
    deaths: int
    """Different minutes of the last hour in which its agents died."""
    left_seconds: float
    """Until the host is admitted again, if no further agent dies."""
    served: frozenset[tuple[str, int]]
    """Lanes and priorities that other hosts serve with all handlers of the agent."""


class Suspicion(NamedTuple):
    """Evidence of a fault."""

    kind: str
    """``two_owners`` or ``store_losses``."""
    subject: str
    """The bucket or the store."""
    buckets: list[bytes]
    """Buckets that are concerned."""
    detail: str


class LeaderTick(NamedTuple):
    """Answer of the leader's one statement per second."""

    epoch: int | None
    """Epoch of the leader's lease, now renewed; ``None`` when another agent holds it."""
    due: list[DueGroup]
    """Lanes and priorities that have HELD rows within the horizon; empty without the lease."""
    overdue: bool
    """Some agent's lease is over and it has no certificate yet: a failure detector should run."""
    heavier: bool = False
    """An agent of greater weight could lead: it should take over."""
    late: bool = False
    """A job runs longer than its ``complete_time``: it should be given to another agent."""
    signals: bool = False
    """A job has waited in vain for its signal, or a signal has lost its sender."""
    batches: bool = False
    """A batch is to be looked at."""
    bulk: bool = False
    """A bulk operation has not ended."""
    fires_in_seconds: float | None = None
    """Until the first fire of a schedule is to be decided; below 0: it is overdue. ``None``: there is none."""


# ------------------------------------------------------------ schedules


class DueSchedule(NamedTuple):
    """A schedule whose next fire is to be decided."""

    schedule: Schedule
    """Without its arguments."""
    next_us: int
    """The nominal time that is not decided yet."""
    decide_us: int
    """When it was to be looked at; after ``next_us`` when the fire was put off."""
    revision: int
    now_us: int
    """Clock of the master."""


class ScheduleMove(NamedTuple):
    """How far a schedule is decided; compared with its row."""

    name: str
    expected_us: int
    revision: int
    next_us: int
    """0: it has ended."""


class NewFire(NamedTuple):
    """One fire, as it is proposed to the master."""

    schedule: str
    nominal_us: int
    outcome: str
    through_us: int
    job_id: bytes
    due_us: int
    headers: bytes


class FiredLine(NamedTuple):
    """One fire, as the master has decided it."""

    schedule: str
    nominal_us: int
    outcome: str
    """A ``FireOutcome``; ``known`` and ``ran``: it was decided before."""
    lane: str
    priority: int
    due_us: int


class RunNowAnswer(NamedTuple):
    """What became of a fire that a person asked for."""

    outcome: FireOutcome
    """FIRED or SKIPPED."""
    lane: str
    priority: int
    previous: bytes | None
    """A job of an earlier fire that has not ended."""


# ------------------------------------------------------------ stores


class StoreGeneration(NamedTuple):
    """What the master knows of an agent store."""

    generation: bytes
    served: bool
    """A bucket names the store, so it had been initialised before the master answered."""


# ------------------------------------------------------------ locks


class LockAnswer(NamedTuple):
    """Answer of one attempt to take a named lock."""

    fence: int | None
    """Fencing number of the caller, which holds the lock now; ``None``: another program holds it."""
    held: LockView | None
    """The present holder; ``None`` also when another program has taken the lock at the same moment."""


# ------------------------------------------------------------ jobs of owners


class Onboarded(NamedTuple):
    """Answer of one onboarding statement."""

    bucket_ok: bool
    entries: list[Entry]
    """Rows that are now ASSIGNED to the bucket, with the increased token."""
    more: bool
    """The batch was full: another call may find more."""
    behind: int = 0
    """Entries that were due before the place where the calls before this one had begun to read."""


class StepScope(NamedTuple):
    """Which next steps of workflows the owner of a bucket takes with the outcomes of the steps before them."""

    lane: str
    priority: int
    handlers: Sequence[str] | None = None
    """``None``: any."""
    without_tags: Sequence[str] = ()
    capabilities: Sequence[str] | None = None
    """Jobs that require another capability stay; ``None``: none does."""


class FinishedSteps(NamedTuple):
    """Answer of a write of outcomes of steps."""

    written: Written
    entries: Sequence[Entry]
    """Next steps that are now ASSIGNED to the bucket. (An answer that was lost names none: they are found without a copy.)"""
    more: bool
    """Further next steps are HELD that the bucket could take."""


class CancelledRow(NamedTuple):
    """A job that waited in a bucket and is CANCELLED now; its copy may still be in the bucket."""

    id: bytes
    bucket_id: bytes
    due_us: int
    """Place of the copy among the assigned jobs of the bucket."""
    ended: bool
    """By this call; otherwise it was CANCELLED before."""


class RowRef(NamedTuple):
    """One in-flight row, for anti-entropy."""

    id: bytes
    identity: Identity
    state: str
    changed_us: int


# ------------------------------------------------------------ rescue


class Swept(NamedTuple):
    """Answer of one sweep over the rows of a bucket."""

    moved: int
    """Rows that named the bucket and no longer do; 0 also when the bucket has another owner."""
    rescued: int
    """Of these: rows that were PROCESSING; each counts one rescue."""
    failed: int = 0
    """Of these: rows that became FAILED (abandoned, or rescued too often)."""


class UnstorableEntry(NamedTuple):
    """An entry of an evacuated bucket that the master cannot store as a job, or that cannot be decoded."""

    id: bytes
    """Id of the job; of an unreadable entry, the 16 bytes in the place of the id."""
    kind: str
    """List of the bucket: ``kept``, ``claimed``, ``pending`` or ``assigned``."""
    raw: bytes
    """The stored bytes."""
    why: str


# ------------------------------------------------------------ maintenance


class Reassigned(NamedTuple):
    """Answer of one look for jobs that run longer than their ``complete_time``."""

    moved: int
    """Jobs that do not run any more by their row."""
    failed: int
    """Of these: FAILED with the reason ``too_slow``, because they were reassigned too often."""


class DueGroup(NamedTuple):
    """A lane and a priority that have HELD jobs within the horizon."""

    lane: str
    priority: int


class HeldJobs(NamedTuple):
    """HELD jobs of one lane and priority, counted up to a bound."""

    lane: str
    priority: int
    due: int
    later: int
    """Those whose due time has not come."""
    oldest_seconds: float
    """For how long the oldest of the due ones has been due; 0: none is due."""


class FilledBucket(NamedTuple):
    """A bucket in which jobs may wait."""

    id: bytes
    store: str
    lane: str
    priority: int
    owner: bytes
    active: bool


class MasterBacklog(NamedTuple):
    """What the master knows of waiting jobs."""

    held: list[HeldJobs]
    buckets: list[FilledBucket]
    slots: dict[bytes, int]
    """Of the agents that take jobs, by their ids."""


class RecordKind(StrEnum):
    """Records beside jobs that the leader removes after their retention."""

    AGENTS = "agents"
    PERMITS = "permits"
    KEYS = "keys"
    QUARANTINE = "quarantine"
    OPERATOR_LOG = "operator_log"
    BUCKET_EVENTS = "bucket_events"
    PUT_OFF = "put_off"
    LOCKS = "locks"
    UNIQUE_KEYS = "unique_keys"
    SCHEDULE_FIRES = "schedule_fires"
    SIGNALS = "signals"
    WORKFLOWS = "workflows"
    BATCHES = "batches"
    BULK = "bulk"
    RUN_PROGRESS = "run_progress"
    JOB_LOGS = "job_logs"


class ProgressLine(NamedTuple):
    """The last report of a run; columns of one statement."""

    job_id: bytes
    token: int
    done: float
    total: float | None
    text: str


class UnservedHandler(NamedTuple):
    """Overdue jobs of a handler that no owner of a bucket of their lane and priority has."""

    cause: UnservedCause
    jobs: int
    """At most the number of jobs that were looked at."""
    oldest_us: int
    """Due time of the oldest of them."""


class HelpRequest(NamedTuple):
    """A request that an agent has a bucket for jobs without an owner, begun or ended."""

    lane: str
    priority: int
    handler: str
    helper: bytes


class WrittenPause(NamedTuple):
    """A pause that is in the master now."""

    version: int
    """Of the pauses with this one."""
    until_us: int | None
    """Its end by the master's clock; ``None`` without one."""


# ------------------------------------------------------------ queries


class SentRow(NamedTuple):
    """The row of a job that is sent again."""

    state: JobState
    handler: str
    args: bytes
    bucket_id: bytes | None


class SentBefore(NamedTuple):
    """Rows of jobs that may have been sent before."""

    rows: dict[bytes, SentRow]
    """By id; only ids that have a row."""
    strangers: bool
    """Some bucket that may hold jobs was not among the given ones."""


class JobsStep(NamedTuple):
    """One step through a range of ids."""

    read_to: bytes
    """The lowest id that was read; the next step goes on below it."""
    jobs: list[JobView]
    """Those that fit, newest first."""


class CountStep(NamedTuple):
    """One step through a range of ids that counts."""

    read_to: bytes
    """The lowest id that was read; the next step goes on below it."""
    jobs: int


class EndedRow(NamedTuple):
    """What is needed of a job's row to give its result, or the reason why there is none."""

    id: bytes
    state: JobState
    handler: str
    result: bytes | None
    error: ErrorInfo | None


class TenantTurns(NamedTuple):
    """How the jobs of tenants take turns in one fetch."""

    over_share: Sequence[str] = ()
    """Tenants that have their share in the bucket: their jobs stay."""
    weights: Mapping[str, int] = MappingProxyType({})
    """Jobs of a tenant in one turn; 1 for those that are not named."""


class FetchScope(NamedTuple):
    """Which due jobs of an owner's handlers it may fetch."""

    capabilities: Sequence[str] | None = None
    """Jobs that require another capability stay; ``None``: none does."""
    trials: Sequence[bytes] = ()
    """Trials of half-open breakers."""
    trial_handlers: Sequence[str] = ()
    """Handlers of which only these trials are fetched."""
    tenants: TenantTurns | None = None
    """Fetch in turns of tenants; ``None``: the oldest first, whatever their tenant."""


ANY_JOB = FetchScope()
"""Every job of the handlers."""
