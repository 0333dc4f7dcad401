"""The tables of a simulated master: immutable rows in dictionaries, so that a snapshot is a copy of the dictionaries."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from jobmaster.model.flow.limit import LimitKey

FINAL = frozenset({"SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"})
OVER = FINAL | {"MOVED"}
"""States that nothing in this cluster changes."""
IN_FLIGHT = frozenset({"ASSIGNED", "PROCESSING"})
ALIVE = frozenset({"ACTIVE", "STOPPING"})


class JobRow(NamedTuple):
    """One row of ``job``; times are microseconds, ``None`` is NULL."""

    id: bytes
    state: str
    priority: int
    lane: str
    handler: str
    token: int
    bucket_id: bytes | None
    bucket_epoch: int | None
    attempt: int
    rescues: int
    cancel_requested: bool
    due_us: int | None
    expires_us: int | None
    changed_us: int
    args: bytes
    headers: bytes
    result: bytes | None
    error: bytes | None

    @property
    def identity(self) -> tuple[int, bytes | None, int | None]:
        return self.token, self.bucket_id, self.bucket_epoch


class BucketRow(NamedTuple):
    """One row of ``bucket``."""

    id: bytes
    store: str
    lane: str
    priority: int
    state: str
    epoch: int
    owner: bytes
    changed_us: int
    former_owner: bytes | None = None


class AgentRow(NamedTuple):
    """One row of ``agent``."""

    id: bytes
    mode: str
    weight: int
    state: str
    lease_until: int
    lease_us: int
    held_since: int
    drain_requested: bool
    started_us: int
    pauses_obeyed: int | None = None
    handlers: tuple[str, ...] = ()
    process_ended: bool = False
    share: float = 1.0
    capabilities: tuple[str, ...] = ()


class BreakerRow(NamedTuple):
    """One row of ``breaker``."""

    name: str
    state: str
    epoch: int
    looks: int
    until_us: int | None
    failures: float
    window_seconds: float
    min_calls: int
    open_seconds: float
    half_open: int
    declared_us: int
    changed_us: int
    actor: str
    reason: str


class ResultRow(NamedTuple):
    """One row of ``breaker_result``."""

    at_us: int
    calls: int
    failures: int


class TrialRow(NamedTuple):
    """One row of ``breaker_trial``."""

    epoch: int
    attempt: int
    failed: bool | None
    chosen_us: int
    passed_us: int | None


class PauseRow(NamedTuple):
    """One row of ``pause``."""

    until_us: int | None
    actor: str
    reason: str
    at_us: int


class LeaseRow(NamedTuple):
    """The leader's lease."""

    owner: bytes | None
    weight: int
    epoch: int
    expires_at: int


class LockRow(NamedTuple):
    """One row of ``named_lock``."""

    name: str
    holder: bytes | None
    fence: int
    label: str
    acquired_us: int
    expires_us: int


class SignalRow(NamedTuple):
    """One row of ``signal``."""

    id: bytes
    key: str
    recipients: str
    payload: bytes
    actor: str
    sent_us: int
    delivered: int
    finished: bool
    kept_until_us: int | None


class MoveRow(NamedTuple):
    """The row of ``cluster_move``."""

    target: bytes
    target_name: str
    page: tuple[bytes, ...]
    moved: int


class UniqueKeyRow(NamedTuple):
    """One row of ``unique_key``."""

    job_id: bytes
    term: str
    held_us: int
    until_us: int | None


class LimitRow(NamedTuple):
    """One row of ``job_limit``."""

    running: int | None = None
    rate: float | None = None
    burst: float | None = None
    declared_us: int | None = None
    """When the agent started that has declared it."""
    set_running: int | None = None
    set_rate: float | None = None
    set_burst: float | None = None
    set_us: int | None = None

    @property
    def values(self) -> tuple[int | None, float | None, float | None]:
        """Those in force: running, rate, burst."""
        running = self.running if self.set_running is None else self.set_running
        if self.set_rate is None:
            return running, self.rate, self.burst if self.set_burst is None else self.set_burst
        return running, self.set_rate, max(self.set_rate, 1.0) if self.set_burst is None else self.set_burst


class LimitState(NamedTuple):
    """One row of ``limit_state``."""

    tokens: float | None = None
    refilled_us: int | None = None
    waiting_bucket: bytes | None = None
    waiting_us: int | None = None
    waiting_weight: int = 0
    weighed_us: int | None = None


class LoanRow(NamedTuple):
    """One row of ``permit_loan``."""

    permits: int
    wanted: int
    sequence: int
    asked_us: int


class PermitRow(NamedTuple):
    """One row of ``permit``."""

    token: int
    weight: int
    maximum: int


class OnceAttempt(NamedTuple):
    """One row of ``once_attempt``."""

    lock_name: str
    fence: int
    label: str
    failures: int
    error: str | None


class ScheduleRow(NamedTuple):
    """One row of ``schedule``."""

    name: str
    source: str
    digest: str
    definition: bytes
    handler: str
    args: bytes
    priority: int
    lane: str
    overlap: str
    tags: tuple[str, ...]
    declared_us: int
    revision: int
    next_us: int | None
    decide_us: int | None
    last_us: int | None
    last_jobs: tuple[bytes, ...]
    paused: bool
    retired: bool
    undeclared_us: int | None
    paused_us: int | None = None
    lapsed_us: int | None = None
    """When it was retired because no agent declared it."""
    superseded: tuple[str, ...] = ()


class FireRow(NamedTuple):
    """One line of ``schedule_fire``."""

    outcome: str
    job_id: bytes | None
    through_us: int | None
    previous_us: int | None
    manual: bool


class Refusal(NamedTuple):
    """A line of ``attempt``."""

    outcome: str
    refused: int


class Event(NamedTuple):
    """A line of ``bucket_event``."""

    bucket_id: bytes
    before: str | None
    after: str
    epoch: int
    actor: bytes
    reason: str


AttemptKey = tuple[bytes, int, bytes | None, int | None]


class Tables:
    """Everything a master remembers."""

    def __init__(self) -> None:
        self.name = "sim"
        self.mode = "active"
        self.mode_us = 0
        self.move: MoveRow | None = None
        self.passed_signals: dict[bytes, SignalRow] = {}
        """On their way to another cluster."""
        self.jobs: dict[bytes, JobRow] = {}
        self.attempts: dict[AttemptKey, Refusal] = {}
        self.buckets: dict[bytes, BucketRow] = {}
        self.events: list[Event] = []
        self.agents: dict[bytes, AgentRow] = {}
        self.server = 1  # its start: another one after a failover
        self.map_versions: dict[int, Snapshot] = {}
        """What was read with each version of the map of buckets."""
        self.leader_lease: LeaseRow | None = None
        self.locks: dict[str, LockRow] = {}
        self.lock_fence = 0
        """The sequence."""
        self.once: dict[tuple[str, str], tuple[int, str]] = {}
        """Done actions: number and label of the holder."""
        self.signals: dict[bytes, SignalRow] = {}
        self.waiting: dict[bytes, str] = {}
        """Jobs that wait for a signal, as the index holds them, and the key; a cancel leaves its entry behind."""
        self.once_attempts: dict[tuple[str, str], OnceAttempt] = {}
        self.workflows: dict[bytes, Any] = {}
        self.workflow_steps: dict[bytes, Any] = {}
        """Of each workflow by number; replaced as a whole."""
        self.bulk: dict[bytes, Any] = {}
        self.batches: dict[bytes, Any] = {}
        self.batch_ranges: dict[bytes, bytes] = {}
        self.batch_notes: list[bytes] = []
        self.batch_tallies: dict[tuple[bytes, bytes], tuple[int, int]] = {}
        """Range and agent: jobs ended, and when the last ones were."""
        self.batch_firsts: dict[bytes, int] = {}
        self.batch_dropped: dict[tuple[bytes, str], int] = {}
        self.handlers: dict[str, str] = {}
        self.keys: dict[tuple[str, str], tuple[bytes, bytes]] = {}
        self.unique_keys: dict[tuple[str, str], UniqueKeyRow] = {}
        self.limits: dict[str, LimitRow] = {}
        self.limit_states: dict[LimitKey, LimitState] = {}
        self.permits: dict[tuple[str, str, bytes], PermitRow] = {}
        self.permit_loans: dict[tuple[str, str, bytes], LoanRow] = {}
        """By limit, key and agent."""
        self.stores: dict[str, bytes] = {}
        self.quarantine: dict[tuple[bytes, str], tuple[bytes | None, bytes]] = {}
        self.pauses: dict[tuple[str, str], PauseRow] = {}
        self.pause_version = 0
        self.breakers: dict[str, BreakerRow] = {}
        self.breaker_handlers: dict[str, str] = {}
        self.breaker_results: dict[tuple[str, bytes, int], ResultRow] = {}
        """By breaker, agent and number of the report."""
        self.breaker_trials: dict[tuple[str, bytes], TrialRow] = {}
        """By breaker and job."""
        self.schedules: dict[str, ScheduleRow] = {}
        self.fires: dict[tuple[str, int], FireRow] = {}
        self.declared: dict[bytes, tuple[str, ...]] = {}
        self.digests: dict[bytes, set[str]] = {}
        """Names of the schedules that agents declare."""
        self.floor = bytes(16)

    def copied(self) -> Tables:
        """The same tables at this moment."""
        twin = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict | list | set):
                setattr(twin, name, value.copy())
        return twin


class Snapshot(NamedTuple):
    """What a statement saw when it began: READ COMMITTED shows these rows wherever they are not locked and read again."""

    buckets: dict[bytes, BucketRow]
    agents: dict[bytes, AgentRow]
    schedules: Mapping[str, ScheduleRow] = MappingProxyType({})
    fires: Mapping[tuple[str, int], FireRow] = MappingProxyType({})
    signals: Mapping[bytes, SignalRow] = MappingProxyType({})
    waiting: Mapping[bytes, str] = MappingProxyType({})
    workflow_steps: Mapping[bytes, Any] = MappingProxyType({})
    permits: Mapping[LimitKey, int] = MappingProxyType({})
    """Taken of each key, for admissions that lock nothing."""
    breakers: Mapping[str, BreakerRow] = MappingProxyType({})
    breaker_results: Mapping[tuple[str, bytes, int], ResultRow] = MappingProxyType({})
    breaker_trials: Mapping[tuple[str, bytes], TrialRow] = MappingProxyType({})
    reports: int = 0
    """How many reports of breakers had been taken."""
    unique_keys: Mapping[tuple[str, str], UniqueKeyRow] = MappingProxyType({})
    """For submits that lock no key."""


class Record(dict[str, Any]):
    """A row of an answer: by name, and in order, as the driver's records."""

    def __iter__(self) -> Any:
        return iter(self.values())

    def __missing__(self, place: int) -> Any:
        return list(self.values())[place]


Watch = Callable[[JobRow | None, JobRow, str], None]
