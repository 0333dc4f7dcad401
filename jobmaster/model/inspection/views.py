"""What an operator sees of a cluster: agents, hosts, buckets, rescues, what waits, and the actions of operators.

A view is as it was when it was read. Ids are ``UUID``, times are aware ``datetime`` in UTC by the master's clock, durations
are seconds: ``msgspec.json.encode`` makes JSON of a view as it is.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from jobmaster.model.agent import AgentState
from jobmaster.model.bucket import BucketState
from jobmaster.model.job import Priority
from jobmaster.model.pause import Pause


class HandlerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one handler in one agent, on the average since the agent published before."""

    handler: str
    runs_per_second: float
    """Attempts whose outcome is in the master."""
    failed_per_second: float
    """Those that failed, tried again or not, or were timed out."""
    run_seconds: float
    """How long one took."""


class AgentStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What the process of an agent and its host do, as the agent has published it with a renewal of its lease."""

    slots: int = 0
    """Jobs that it may run at once."""
    running: int = 0
    """Handlers that run."""
    queued: int = 0
    """Claimed jobs that wait for a slot."""
    ended_per_second: float = 0.0
    """Outcomes of its jobs in the master, on the average since it published before."""
    started_per_second: float = 0.0
    """Handlers started."""
    failed_per_second: float = 0.0
    """Jobs that have FAILED."""
    handlers: tuple[HandlerFigures, ...] = ()
    """The busiest ones."""
    processor: float = 0.0
    """Processor time of the process for each second since then; 1 is one processor."""
    memory_bytes: int = 0
    """Resident memory of the process."""
    threads: int = 0
    loop_lag_seconds: float = 0.0
    """How much later than asked the event loop went on, the last time that it was asked."""
    host_processors: int = 0
    host_load: float = 0.0
    """Load average of one minute."""
    host_memory_bytes: int = 0
    host_memory_free_bytes: int = 0
    """Memory of the host that programs can have."""


class AgentView(msgspec.Struct, frozen=True, kw_only=True):
    """An agent by its row."""

    id: UUID
    name: str
    host: str
    pid: int
    version: str
    mode: str
    store: str
    weight: int
    state: AgentState
    leads: bool
    lanes: tuple[str, ...]
    handlers: tuple[str, ...]
    drain_requested: bool
    beats: int
    """Renewals of its lease."""
    lease_seconds: float
    lease_left_seconds: float | None
    """Time to the end of its lease; not above 0: it has not renewed it. ``None``: it has ended."""
    ended_reason: str | None
    started_at: datetime
    ended_at: datetime | None
    buckets: int
    settings: dict[str, Any]
    """Those that all agents should have in common, by their key in the configuration."""
    clock_ahead_seconds: float | None
    """Its wall clock against the master's, at its registration."""
    cordoned_seconds: float | None = None
    """Its host is cordoned for so long, because agents of it died again and again; ``None``: it is not."""
    statistics: AgentStatistics | None
    """``None``: it has published none yet, or its program is older."""
    statistics_at: datetime | None

    @property
    def alive(self) -> bool:
        """It holds its lease."""
        return self.lease_left_seconds is not None and self.lease_left_seconds > 0


class HostView(msgspec.Struct, frozen=True, kw_only=True):
    """A machine with living agents. The figures of the machine are those that an agent has published last."""

    host: str
    agents: int
    buckets: int
    slots: int
    running: int
    processor: float
    """Processor time of its agents for each second."""
    memory_bytes: int
    """Resident memory of its agents together."""
    processors: int
    load: float
    host_memory_bytes: int
    host_memory_free_bytes: int
    at: datetime | None
    """When they were published; ``None``: no agent has published any, and the figures are 0."""


class BucketView(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket by its row, with its depth in its store."""

    id: UUID
    store: str
    lane: str
    priority: Priority
    state: BucketState
    epoch: int
    owner: UUID
    owner_name: str | None
    owner_state: AgentState | None
    owner_leased: bool
    """Its owner holds its lease."""
    changed_at: datetime
    unchanged_seconds: float
    pending: int | None
    """Jobs in the store that are not claimed and have no row. ``None``, as the next three: its store did not answer, or has
    no such bucket."""
    assigned: int | None
    """Jobs from the master that wait in the store."""
    claimed_lists: int | None
    kept: int | None
    """Outcomes that wait in the store for the master."""
    rows_assigned: int
    """Jobs with a row that lie in it, or wait in its owner."""
    rows_processing: int
    """Jobs with a row that run."""


class Buckets(msgspec.Struct, frozen=True, kw_only=True):
    """The buckets of a cluster."""

    buckets: tuple[BucketView, ...]
    silent: tuple[str, ...]
    """Why some have no depths: a sentence for each store that did not answer."""


class BucketEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a bucket."""

    at: datetime
    from_state: BucketState | None
    to_state: BucketState
    epoch: int
    actor: UUID | None
    """Id of the agent that has changed it."""
    reason: str
    jobs_moved: int | None
    jobs_rescued: int | None


class Rescue(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket that was lost, and what became of it, without its priority, which is shown in several forms."""

    bucket_id: UUID
    lane: str | None
    """``None``, as the store and the priority: the bucket has no row any more."""
    store: str | None
    epoch: int
    lost_at: datetime
    reason: str
    owner: UUID | None
    owner_name: str | None
    taken_at: datetime | None
    rescuer: UUID | None
    rescuer_name: str | None
    waited_us: int | None
    """Time from the loss until another agent took the bucket, in microseconds."""
    over_at: datetime | None
    took_us: int | None
    """Time from then until it was empty."""
    jobs_moved: int | None
    jobs_rescued: int | None
    state: str
    """``waiting``, ``draining``, ``drained``, or ``lost again`` (its rescuer ended; another line has the next one)."""


class RescueView(Rescue, frozen=True, kw_only=True):
    """A bucket that was lost, and what became of it."""

    priority: Priority | None


class OperatorAct(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the operator log."""

    at: datetime
    actor: str
    action: str
    subject: str
    detail: dict[str, Any]


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """What waits and runs in one lane and priority."""

    lane: str
    priority: Priority
    buckets: int
    """ACTIVE ones."""
    frozen: int
    pending: int
    """Jobs in the stores without a row."""
    assigned: int
    """Jobs in the stores with a row."""
    running: int
    """Jobs that run and have a row."""
    kept: int
    """Outcomes that wait in the stores for the master."""
    held: int
    """Jobs that wait in the master; counted up to ``COUNTED_MAX``, as the next two."""
    due: int
    overdue: int
    """Those that have been due for more than ``OVERDUE_SECONDS``."""
    oldest_seconds: float | None
    """How long the first of them has been due; ``None``: none is due."""

    @property
    def ready(self) -> int:
        """Jobs that could start now."""
        return self.pending + self.assigned + self.due


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster on one screen."""

    cluster: str
    at: datetime
    leader: str | None
    """Name of the agent that leads."""
    agents_alive: int
    agents_known: int
    slots: int
    """Of the agents that have published their statistics, as the next two."""
    running: int
    ended_per_second: float
    backlog: tuple[Backlog, ...]
    ready: int
    """Jobs that could start now, in all lanes."""
    drain_seconds: float | None
    """When these would have ended at the present rate, if no more came; ``None``: none ends."""
    buckets: dict[str, int]
    """How many there are in each state."""
    pauses: tuple[Pause, ...]
    schedules_paused: tuple[str, ...]
    warnings: tuple[str, ...]
