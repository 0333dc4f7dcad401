"""The settings of a cluster as frozen structs: every field has a working default, a unit in its name, and a sentence.

This file owns the *shape* of the configuration and the relations between its numbers; reading YAML, environment and
command line is done by the other modules of this package. Durations are seconds (float), sizes are bytes (int).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta, field

from jobmaster.model.flow.tenant import WEIGHT_MAX
from jobmaster.model.job import REQUESTABLE, Durability, OnFull, Priority
from jobmaster.model.schedule import MISFIRE_MAX_LIMIT, Misfire, Overlap
from jobmaster.rules.access import Role, Scope

Seconds = Annotated[float, Meta(ge=0.0)]
PositiveSeconds = Annotated[float, Meta(gt=0.0)]
Bytes = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
PositiveCount = Annotated[int, Meta(ge=1)]
LimitName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}$",
        description="1 to 100 letters, digits and . _ : / -, the first a letter or digit",
    ),
]
Name = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,47}$",
        description="1 to 48 lower-case letters, digits, _ and -, the first a letter or digit",
    ),
]
SchemaName = Annotated[
    str,
    Meta(
        pattern=r"^[a-z_][a-z0-9_]{0,62}$",
        description="1 to 63 lower-case letters, digits and _, the first a letter or _",
    ),
]
MasterDsn = Annotated[
    str,
    Meta(pattern=r"^postgres(ql)?://", description="a URL such as postgresql://user:password@host:5432/database"),
]
StoreUrl = Annotated[
    str,
    Meta(
        pattern=r"^(rediss?(\+(sentinel|cluster))?|unix)://",
        description="a URL such as redis://host:6379/0, rediss://host:6379/0, unix:///path/to.sock or "
        "redis+sentinel://host1:26379,host2:26379/group/0 or redis+cluster://host1:6379,host2:6379",
    ),
]
HandlerPath = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*(:[A-Za-z_][A-Za-z0-9_]*)?$",
        description="package.module or package.module:attribute",
    ),
]
WebTokenText = Annotated[
    str,
    Meta(
        pattern=r"^[!-~]{20,200}$",
        description="a token of 20 to 200 printable characters without spaces",
        extra_json_schema={"secret": True},
    ),
]
KeyText = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9+/]{43}=$",
        description="base64 of 32 bytes, by a reference such as ${file:/run/secrets/key}",
        extra_json_schema={"secret": True},
    ),
]
HashText = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$", description="64 hexadecimal digits, as of SHA-256")]
HttpUrl = Annotated[
    str, Meta(pattern=r"^https?://[!-~]{1,500}$", description="a URL that begins with http:// or https://")
]
TraceLink = Annotated[
    str,
    Meta(
        pattern=r"^https?://[!-~]{0,500}\{trace_id\}[!-~]{0,500}$",
        description="a URL with {trace_id} in it, such as https://traces.example.org/trace/{trace_id}",
    ),
]
HostName = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$",
        description="the name of a host in lower case, without scheme and port",
    ),
]
ProxyAddress = Annotated[
    str, Meta(pattern=r"^[0-9a-fA-F.:]+(/[0-9]{1,3})?$", description="an address or a network such as 10.0.0.0/8")
]
DurabilityChoice = Annotated[Durability, Meta(extra_json_schema={"enum": [level.value for level in REQUESTABLE]})]
PriorityLabel = Annotated[str, Meta(pattern="^(very_low|low|medium|high|critical)$")]
TenantName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,99}$",
        description="1 to 100 letters, digits and . _ : / @ + -, the first a letter or digit",
    ),
]


_EXACT = 1.0 + 1e-9
"""In floats 0.4 * 3 is slightly more than 1.2; the factor accepts 0.4 as a third of 1.2."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every block of the configuration: frozen, keyword-only, closed to unknown keys."""


class AgentMode(StrEnum):
    """What an agent does. ``leader`` owns no buckets; ``execution`` never leads; ``drain`` only rescues."""

    FULL = "full"
    EXECUTION = "execution"
    LEADER = "leader"
    DRAIN = "drain"


class MasterDown(StrEnum):
    """What an agent does while the master gives no answer at all."""

    CONTINUE = "continue"
    """It works from the store, whose fence authorises starts, and keeps outcomes in the store for the master."""
    FENCE = "fence"
    """It stops when its lease ends, and starts again when the master answers."""


class Pooler(StrEnum):
    """What stands between a producer and PostgreSQL."""

    NONE = "none"
    TRANSACTION = "transaction"
    """A pooler that gives each transaction any of its connections, such as PgBouncer with ``pool_mode = transaction``."""


class WorkerStart(StrEnum):
    """How a worker process starts."""

    FORK = "fork"
    SPAWN = "spawn"


class StoreDurability(StrEnum):
    """What is required of a store's own log."""

    MEASURED = "measured"
    """The level is read from the store; a submit that requires more is refused."""
    VOLATILE_OK = "volatile_ok"
    """A store that keeps no append-only file is accepted."""


class MasterSettings(Section, frozen=True, kw_only=True):
    """The master database (PostgreSQL >= 15)."""

    dsn: MasterDsn | None = None
    """URL of the database; null means the embedded server of ``data_dir``."""
    read_dsn: MasterDsn | None = None
    """URL of a standby that the data pipeline reads in place of ``dsn``; what it writes goes to ``dsn``."""
    password_command: str | None = None
    """Command whose first line of output is the password, in place of one in ``dsn``. It is run without a shell when a
    connection is opened, and again when the server refuses what it gave before."""
    password_lifetime_seconds: Seconds = 60.0
    """How long a password of ``password_command`` is used again for further connections."""
    schema: SchemaName | None = None
    """PostgreSQL schema that holds this cluster; null means ``jobmaster_<cluster>``."""
    pooler: Pooler = Pooler.NONE
    """What ``dsn`` leads to. ``transaction``: a pooler such as PgBouncer in transaction mode; producers only: agents and
    most commands need PostgreSQL itself. Each call of a producer is then a transaction of its own."""
    pool_size: PositiveCount = 4
    """Data connections of one process that runs no jobs."""
    agent_pool_size: PositiveCount = 1
    """Data connections of one agent process; beside them it has one for its lease and one for control, which short writes
    use, too."""
    connect_timeout_seconds: PositiveSeconds = 5.0
    """Time-out of opening one connection."""
    statement_timeout_seconds: PositiveSeconds = 10.0
    """How long one statement may run before the server ends it."""
    lock_timeout_seconds: PositiveSeconds = 2.0
    """How long one statement may wait for a lock."""
    transactions: PositiveCount = 4
    """Connections of one agent process for ``transactional`` handlers; as many of them run at once."""
    transaction_statement_timeout_seconds: PositiveSeconds = 30.0
    """How long one statement of a handler's transaction may run."""
    transaction_lock_timeout_seconds: PositiveSeconds = 5.0
    """How long one statement of a handler's transaction may wait for a lock."""
    transaction_idle_timeout_seconds: PositiveSeconds = 60.0
    """How long a handler's transaction may stay open without a statement before the server ends it."""


class StoreSettings(Section, frozen=True, kw_only=True):
    """One agent store (Redis >= 7.0 or Valkey >= 7.2)."""

    url: StoreUrl | None = None
    """``redis://``, ``rediss://`` (TLS), ``unix://``, ``redis+sentinel://`` or ``redis+cluster://`` URL; null means the
    embedded server of ``data_dir``."""
    password_command: str | None = None
    """Command whose first line of output is the password, in place of one in ``url``; as ``master.password_command``."""
    password_lifetime_seconds: Seconds = 60.0
    """How long a password of ``password_command`` is used again for further connections."""
    connect_timeout_seconds: PositiveSeconds = 5.0
    """Time-out of opening one connection."""
    call_timeout_seconds: PositiveSeconds = 5.0
    """Time-out of one call; the wake-up connection has its own."""
    durability: StoreDurability = StoreDurability.MEASURED
    """``volatile_ok`` accepts submits also while the store keeps no append-only file, as managed stores do; their receipts
    have the level ``volatile``. ``measured`` refuses them."""
    high_water_jobs: PositiveCount = 200_000
    """Waiting jobs of one bucket above which submits get FULL and the owner spills to the master."""
    high_water_bytes: Annotated[int, Meta(ge=1)] = 256 * 1024 * 1024
    """The same in bytes of waiting jobs; the limit that is reached first counts."""
    kept_outcomes: PositiveCount = 200_000
    """Outcomes that one bucket keeps while the master is down; at this number its owner stops claiming until the master is
    back."""
    kept_bytes: Annotated[int, Meta(ge=1)] = 256 * 1024 * 1024
    """The same in bytes of kept outcomes; the limit that is reached first counts."""


class BucketCounts(Section, frozen=True, kw_only=True):
    """Number of buckets of each priority that an agent owns."""

    critical: Count = 1
    high: Count = 1
    medium: Count = 1
    low: Count = 1
    very_low: Count = 1

    def of(self, priority: Priority) -> int:
        """Number of buckets for one priority."""
        return int(getattr(self, priority.label))


class SlotCounts(Section, frozen=True, kw_only=True):
    """Slots of the buckets of some priorities; ``None``: as elsewhere."""

    critical: PositiveCount | None = None
    """Slots of a ``critical`` bucket; without it those of the next weaker setting."""
    high: PositiveCount | None = None
    """Slots of a ``high`` bucket; without it those of the next weaker setting."""
    medium: PositiveCount | None = None
    """Slots of a ``medium`` bucket; without it those of the next weaker setting."""
    low: PositiveCount | None = None
    """Slots of a ``low`` bucket; without it those of the next weaker setting."""
    very_low: PositiveCount | None = None
    """Slots of a ``very_low`` bucket; without it those of the next weaker setting."""

    def of(self, priority: Priority) -> int | None:
        """Slots of a bucket of one priority; ``None``: not set here."""
        found: int | None = getattr(self, priority.label)
        return found


class AgentSettings(Section, frozen=True, kw_only=True):
    """One named kind of agent: ``jobmaster agent run --name <key>`` starts it."""

    mode: AgentMode = AgentMode.FULL
    """``full`` does all, ``execution`` never leads, ``leader`` owns no buckets, ``drain`` only rescues."""
    store: Name = "default"
    """Name of the agent store (under ``stores``) that holds this agent's buckets."""
    processes: PositiveCount = 1
    """Processes that one ``agent run`` starts; each is an agent with its own buckets."""
    provides: list[Name] = field(default_factory=list)
    """What it has that handlers may need (``@handlers.job(needs="gpu")``); it runs the handlers that need nothing else."""
    lanes: dict[Name, BucketCounts] = field(default_factory=dict)
    """Bucket counts per lane; empty means ``buckets`` in lane ``default``."""
    buckets: BucketCounts = BucketCounts()
    """Bucket counts per priority in lane ``default``; not together with ``lanes``."""
    slots: PositiveCount = 50
    """Jobs of one bucket that may run at once, unless one of the next two settings has another number."""
    priority_slots: SlotCounts = SlotCounts()
    """The same for buckets of one priority, such as ``{critical: 100, very_low: 5}``."""
    lane_slots: dict[Name, SlotCounts] = field(default_factory=dict)
    """The same for buckets of one priority in one lane; stronger than ``priority_slots``."""
    bucket_buffer: Count = 1000
    """Claimed jobs of one bucket that may wait in the agent's memory, beside the running ones. A buffer of 1,000 or more
    has room for 1,000 more while the bucket runs at least 10,000 jobs a second."""
    max_running: PositiveCount = 500
    """Jobs of all buckets of one process that may run at once."""
    share: Annotated[float, Meta(gt=0.0, le=1000.0)] = 1.0
    """Share of new jobs that each bucket of this agent gets, relative to an agent with share 1."""
    helps: list[Name] = field(default_factory=lambda: ["default"])
    """Lanes in which it opens a bucket for jobs that it can run and that no bucket serves; see
    ``thresholds.fallback_after``."""
    weight: Count = 1
    """Preference as leader: the heaviest agent leads, also when it comes later; 0 never leads."""
    threads: PositiveCount = 16
    """Threads for ``thread`` handlers of one process."""
    isolated_processes: PositiveCount = 2
    """Worker processes for ``process`` handlers of one process."""
    isolated_warm: Count = 1
    """Of these, how many start with the agent, before the first job, if it has a ``process`` handler."""
    isolated_start: WorkerStart = WorkerStart.SPAWN
    """`spawn`: each worker process is a new interpreter and imports the handlers. `fork`: they start as copies of one that
    has imported the handlers, on Linux and where that is safe."""
    isolated_jobs: PositiveCount = 100_000
    """Jobs after which a worker process is replaced."""
    isolated_growth_bytes: Bytes = 512 * 1024 * 1024
    """Growth of a worker process's resident memory since its first job after which it is replaced (Linux); 0 = never."""
    lifespan_timeout_seconds: PositiveSeconds = 60.0
    """How long the lifespans of the handlers may take to start, in an agent and in each worker process."""
    metrics_port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    """In place of ``observability.metrics_port``, for kinds of agents that share a machine."""

    def slots_of(self, lane: str, priority: Priority) -> int:
        """Jobs of one bucket of this lane and priority that may run at once."""
        in_lane = self.lane_slots.get(lane)
        found = in_lane.of(priority) if in_lane is not None else None
        return found or self.priority_slots.of(priority) or self.slots

    def slots_at_once(self) -> int:
        """Jobs of all configured buckets of one process that may run at once."""
        slots = sum(
            counts.of(priority) * self.slots_of(lane, priority)
            for lane, counts in self.bucket_counts().items()
            for priority in Priority
        )
        return min(self.max_running, slots)

    def bucket_counts(self) -> dict[str, BucketCounts]:
        """Lane -> counts, with the shorthand ``buckets`` resolved."""
        return dict(self.lanes) if self.lanes else {"default": self.buckets}


class Thresholds(Section, frozen=True, kw_only=True):
    """Where jobs wait, and in batches of which size they move."""

    transient_threshold_seconds: PositiveSeconds = 300.0
    """How long before its due time a job may leave the master for a bucket."""
    transfer_batch: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    """Jobs of one onboarding, evacuation or insert statement."""
    persist_within_seconds: PositiveSeconds = 1.0
    """A claimed job without an outcome after this time gets its row in the master."""
    age_boost_seconds: Seconds = 900.0
    """Waiting (since its due time or its creation) that raises a job by one priority while a process has more jobs than it
    can run. At least every second start goes to the job that was raised highest, and at least every second one to the
    highest priority. 0 turns it off."""
    fallback_after_seconds: Seconds = 150.0
    """Jobs that no bucket serves for this time get a bucket of an agent with ``helps``; 0 turns it off."""
    fallback_idle_seconds: PositiveSeconds = 600.0
    """A bucket that was opened for such jobs completes after this time without a job."""
    assigned_low_water: PositiveCount = 2000
    """Onboarded jobs waiting in one bucket below which its owner fetches more."""


class Tenants(Section, frozen=True, kw_only=True):
    """Fair turns between the tenants of jobs."""

    weights: dict[TenantName, Annotated[int, Meta(ge=1, le=WEIGHT_MAX)]] = field(default_factory=dict)
    """Starts of a tenant for each start of one of weight 1, while jobs of both wait. A tenant that is not named has 1."""
    window: PositiveCount = 5000
    """Jobs waiting in one bucket above which jobs of tenants are written to the master, which passes them on in turns."""
    spare: Annotated[float, Meta(ge=0.0, le=0.5)] = 0.06
    """Part of a bucket's slots that tenants which run more than their share leave free for others, while jobs of several
    tenants come: rounded down, one at least of 10 slots and more, none of fewer."""


class Leases(Section, frozen=True, kw_only=True):
    """How long agents, the leader and producers' caches count as current."""

    lease_seconds: Annotated[float, Meta(ge=0.2, le=600.0)] = 10.0
    """How long an agent counts as alive after a renewal; a crash is noticed at most this + 2 s later."""
    renew_seconds: PositiveSeconds = 3.0
    """How often an agent renews its lease in the master; at most a third of ``lease``."""
    renewals_per_second: Annotated[float, Meta(gt=0.0)] = 100.0
    """Budget of renewals per second of all agents together; above it each lease and each pause between renewals is longer."""
    store_beat_seconds: PositiveSeconds = 1.0
    """How often an agent writes its heartbeat to its store."""
    leader_lease_seconds: PositiveSeconds = 3.5
    """How long the leader keeps its lease without a renewal."""
    leader_renew_seconds: PositiveSeconds = 1.0
    """How often the leader renews; at most a third of ``leader_lease``."""
    master_down: MasterDown = MasterDown.CONTINUE
    """While the master does not answer: ``continue`` from the agent store, or ``fence`` (stop) when the lease ends."""
    grace_seconds: Seconds = 25.0
    """How long a graceful exit waits for running and queued jobs."""
    tombstone_seconds: PositiveSeconds = 120.0
    """How long the row of a retired bucket stays; longer than a producer caches its bucket map."""
    bucket_map_seconds: PositiveSeconds = 10.0
    """Age at which a producer refreshes its cached bucket map."""
    store_dead_seconds: PositiveSeconds = 600.0
    """How long an agent store must not answer before the rows of its lost buckets go back to HELD without it."""
    orphan_grace_seconds: PositiveSeconds = 60.0
    """How long an in-flight row may name a dropped bucket before the leader releases its job."""
    anti_entropy_seconds: PositiveSeconds = 30.0
    """How often an owner compares the rows of a bucket with its jobs; for an empty bucket a third as often."""

    def __post_init__(self) -> None:
        wrong = []
        if self.store_dead_seconds < self.lease_seconds:
            wrong.append(
                f"leases.store_dead ({self.store_dead_seconds:g}s) must not be shorter than "
                f"leases.lease ({self.lease_seconds:g}s)"
            )
        if self.renew_seconds * 3 > self.lease_seconds * _EXACT:
            wrong.append(
                f"leases.renew ({self.renew_seconds:g}s) must be at most a third of "
                f"leases.lease ({self.lease_seconds:g}s)"
            )
        if self.leader_renew_seconds * 3 > self.leader_lease_seconds * _EXACT:
            wrong.append(
                f"leases.leader_renew ({self.leader_renew_seconds:g}s) must be at most a third of "
                f"leases.leader_lease ({self.leader_lease_seconds:g}s)"
            )
        if self.tombstone_seconds <= self.bucket_map_seconds * 2:
            wrong.append(
                f"leases.tombstone ({self.tombstone_seconds:g}s) must be more than twice "
                f"leases.bucket_map ({self.bucket_map_seconds:g}s)"
            )
        if wrong:
            raise ValueError(*wrong)


class JobDefaults(Section, frozen=True, kw_only=True):
    """Values of a job for which neither its handler nor its submit sets one."""

    priority: PriorityLabel = "medium"
    """Priority of a job: which buckets it goes to, and which job starts first."""
    lane: Name = "default"
    """Queue of a job; jobs and buckets match by lane exactly."""
    durability: DurabilityChoice = Durability.STORE
    """Where an acknowledged job is: ``store`` (its log), ``store_fsync`` (its disk), ``master`` (committed row)."""
    timeout_seconds: PositiveSeconds = 300.0
    """How long one attempt may run."""
    max_attempts: PositiveCount = 4
    """Number of attempts, including the first."""
    backoff_seconds: Seconds = 5.0
    """Wait before the second attempt."""
    backoff_factor: Annotated[float, Meta(ge=1.0)] = 2.0
    """Factor between one wait and the next."""
    backoff_max_seconds: PositiveSeconds = 3600.0
    """Longest wait between two attempts."""
    backoff_jitter: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.2
    """Random share of each wait, so that jobs that failed together do not run again together."""
    max_snoozes: PositiveCount = 1000
    """Times that a handler may put one job off (``Snooze``) before the job ends as FAILED (``snoozed_out``)."""
    max_rescues: PositiveCount = 3
    """Rescues of a job, each after the death of the agent that had it, before it ends as FAILED (``agent_lost``)."""
    max_reassigns: PositiveCount = 3
    """Times that a job is given to another agent because its run took longer than its ``complete_time``, before it ends as
    FAILED (``too_slow``)."""
    on_full: OnFull = OnFull.BLOCK
    """When every matching bucket is full: ``block`` and wait, ``raise`` an error, ``spill`` to the master."""
    on_full_timeout_seconds: PositiveSeconds = 30.0
    """How long ``block`` waits before it raises."""


class Limits(Section, frozen=True, kw_only=True):
    """Limits above which input is refused."""

    args_bytes: Bytes = 128 * 1024
    """Encoded arguments of one job."""
    result_bytes: Bytes = 128 * 1024
    """Encoded result of one job."""
    headers_bytes: Bytes = 16 * 1024
    """Tags, metadata and options of one job."""
    error_bytes: Bytes = 16 * 1024
    """Recorded error text of one attempt; longer text is cut and marked."""
    tags: Count = 16
    """Tags of one job."""
    tag_chars: PositiveCount = 64
    """Characters of one tag."""
    due_ahead_days: PositiveCount = 3660
    """Days ahead above which a due time is refused."""
    clock_skew_seconds: PositiveSeconds = 3600.0
    """Difference from the store's clock above which a producer is refused."""
    submit_chunk_jobs: Annotated[int, Meta(ge=1, le=5000)] = 1000
    """Jobs of one call to a store."""


class Partitions(Section, frozen=True, kw_only=True):
    """Partitions of the job table by creation time."""

    span: Annotated[str, Meta(pattern="^(day|week|month)$")] = "day"
    """One partition holds the jobs created in one ``day``, ``week`` or ``month``."""
    ahead_days: PositiveCount = 7
    """Days before their first use at which partitions are created."""


class RetiredJobs(StrEnum):
    """What becomes of a range of jobs that has left the tables of the master."""

    KEEP = "keep"
    """It stays in the database, readable in the views for people, until ``jobmaster pipeline archive`` takes it."""
    DISCARD = "discard"
    """It is dropped without a copy."""


class JobRetention(Section, frozen=True, kw_only=True):
    """When jobs leave the master: the leader retires ranges (``partitions.span``) that are wholly older."""

    after_seconds: PositiveSeconds | None = None
    """Age of a range from its youngest job, at least twice ``limits.clock_skew``; null: nothing leaves by itself."""
    then: RetiredJobs = RetiredJobs.KEEP
    """``keep`` leaves a retired range in the database for the archive; ``discard`` drops it without a copy."""


class Retention(Section, frozen=True, kw_only=True):
    """How long jobs and the records beside them are kept; the leader deletes older records in small batches."""

    jobs: JobRetention = JobRetention()
    """When jobs leave the master. Unfinished jobs never do."""
    ended_agents_days: PositiveCount = 7
    """Agents that have ended, and why they ended."""
    idempotency_keys_days: PositiveCount = 7
    """Idempotency keys whose jobs have left the master (a key always lives as long as the row of its job)."""
    quarantine_days: PositiveCount = 90
    """Entries that no table accepts, because of their id or a value."""
    operator_log_days: PositiveCount = 400
    """Acts of operators."""
    bucket_history_days: PositiveCount = 90
    """History of dropped buckets."""
    schedule_fires_days: PositiveCount = 90
    """Fires of schedules. The newest line of each schedule stays."""


class OnSuspicion(StrEnum):
    """What agents do about evidence of a fault."""

    IGNORE = "ignore"
    """They do not look for it."""
    WARN = "warn"
    """They record and log it."""
    FREEZE = "freeze"
    """They freeze the buckets that are concerned, too; an operator unfreezes them."""


class Safety(Section, frozen=True, kw_only=True):
    """What agents do by themselves when a part of the cluster looks faulty."""

    on_suspicion: OnSuspicion = OnSuspicion.WARN
    """On evidence of two owners of a bucket, of a store that keeps losing buckets, or of a burst of refused outcomes:
    ``ignore``, ``warn`` (log, ``jobmaster doctor``) or ``freeze`` (the ACTIVE buckets of it, once an hour at most)."""
    store_losses: Count = 3
    """Different minutes of an hour in which a store lost buckets with jobs, from which it is suspicious. 0: never."""
    refused_outcomes: Count = 500
    """Outcomes of one agent that their rows refused within a minute, from which the agent is suspicious. 0: never."""
    flapping_deaths: Count = 5
    """Different minutes of an hour in which agents of one host died, from which the host is cordoned: its agents open no
    bucket that other hosts can have. 0: never."""
    cordon_seconds: PositiveSeconds = 900.0
    """How long after its last death a host stays cordoned."""


class TraceExporter(StrEnum):
    """Where spans go."""

    OTLP = "otlp"
    """To a collector, by OTLP over HTTP."""
    CONSOLE = "console"
    """To standard error, one JSON object a line."""
    NONE = "none"
    """Nowhere, unless the application has a tracer provider; the trace context travels with the jobs all the same."""


class RunParent(StrEnum):
    """How the span of a run refers to that of the submit."""

    CHILD = "child"
    """As its child, in the same trace."""
    LINK = "link"
    """By a link; it begins a trace of its own."""


class Traces(Section, frozen=True, kw_only=True):
    """Traces (extra ``otel``). The variables ``OTEL_*`` hold where a key is null."""

    exporter: TraceExporter | None = None
    """``otlp``, ``console`` or ``none``, in a program that has no tracer provider of its own; null: no traces."""
    endpoint: HttpUrl | None = None
    """URL to which spans are posted, such as ``http://collector:4318/v1/traces``."""
    sample: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    """Share of the traces beginning in the cluster that are recorded; others keep the decision of their beginning."""
    parent: RunParent = RunParent.CHILD
    """The span of a run is a ``child`` of that of its submit, or has a ``link`` to it, as always after a later due time."""
    calls: bool = False
    """Also spans of the agents' own calls to the master and the stores, each a trace of its own: for debugging."""
    link: TraceLink | None = None
    """Address of a trace with ``{trace_id}`` in it, for the page of a job and ``jobmaster job show``."""

    def link_of(self, trace_id: str | None) -> str | None:
        """The address of a trace; ``None`` without one."""
        return None if trace_id is None or self.link is None else self.link.replace("{trace_id}", trace_id)


class Observability(Section, frozen=True, kw_only=True):
    """Logs, metrics, traces and probes."""

    log_level: Annotated[str, Meta(pattern="^(debug|info|warning|error)$")] = "info"
    """Least severe line that is logged: ``debug``, ``info``, ``warning`` or ``error``."""
    log_format: Annotated[str, Meta(pattern="^(text|json)$")] = "text"
    """``text`` for people, ``json`` (one object a line) for collectors."""
    root_logging: bool = True
    """An agent's root logger has the same format and level, so that lines of handlers name their job. Otherwise it is left to
    the handlers' modules."""
    metrics_host: Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9_.:%-]+$")] = "127.0.0.1"
    """Address for metrics and probes, which have no password. In a container ``0.0.0.0`` (``::``): every address."""
    metrics_port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    """First port for metrics and probes, the next ones for further processes; null = off, 0 = any free."""
    traces: Traces = Traces()
    """Spans of submits and runs."""


class WebToken(Section, frozen=True, kw_only=True):
    """What one caller of the web server identifies itself with: a program by ``Authorization: Bearer``, a person by the name
    and the token in the browser's own dialog. ``jobmaster web token`` makes one."""

    token: WebTokenText | None = None
    """The token itself, by a reference such as ``${file:/run/secrets/web}``; at least 20 characters."""
    sha256: HashText | None = None
    """The SHA-256 of the token, in its place. A token is random, so its hash needs no salt."""
    role: Role = Role.VIEWER
    """``viewer`` reads states and counts; ``operator`` also payloads, submits and changes jobs, schedules, pauses, limits and
    breakers; ``admin`` does all."""
    scopes: list[Scope] = field(default_factory=list)
    """In place of the role: what the caller may do, such as ``[view, submit]`` for a producer."""


class Web(Section, frozen=True, kw_only=True):
    """The web server (``jobmaster web``): pages and HTTP API. Without a token it serves this machine alone, read-only."""

    host: Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9_.:%-]+$")] = "127.0.0.1"
    """Address that it listens on. Another one than the loopback address needs ``tokens``."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8020
    """Port that it listens on; 0 = any free one."""
    read_only: bool = False
    """Refuse every change, whatever the caller may do."""
    tokens: dict[Name, WebToken] = field(default_factory=dict)
    """Callers by name; the name stands in the operator log."""
    anonymous: list[Scope] = field(default_factory=lambda: [Scope.VIEW])
    """What a caller on this machine may read while there are no ``tokens``: ``view``, ``payload``, ``traceback``."""
    hosts: list[HostName] = field(default_factory=list)
    """Host names by which browsers reach it, beside ``localhost`` and addresses. Requests for other names are refused."""
    proxies: list[ProxyAddress] = field(default_factory=list)
    """Addresses of proxies whose ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are believed."""


class Encryption(Section, frozen=True, kw_only=True):
    """Encryption of payloads (extra ``encryption``): arguments, results and error texts of jobs that clients submit."""

    keys: dict[Name, KeyText] = field(default_factory=dict)
    """Keys by id, each base64 of 32 bytes, by a reference to a file or a variable. Agents, and programs that read payloads,
    need all that sealed jobs of the retention were made with."""
    active: Name | None = None
    """Id of the key that seals. Null: nothing is sealed, and what was sealed is opened."""
    require: list[str] = field(default_factory=list)
    """Names of handlers (``"*"``: all) whose jobs run only with arguments that were sealed with one of the keys. A job that
    a program without a key has made ends as ``FAILED`` with ``NotSealed``, unrun."""

    def __post_init__(self) -> None:
        if self.require and not self.keys:
            raise ValueError(
                "encryption.require needs encryption.keys: without a key every job of these handlers would fail"
            )
        if self.active is not None and self.active not in self.keys:
            raise ValueError(f"encryption.active ({self.active}) must be the id of one of encryption.keys")


class ScheduleSettings(Section, frozen=True, kw_only=True):
    """One schedule; agents declare it as they declare those of the code."""

    handler: str | None = None
    """Name of the handler that runs."""
    every: str | None = None
    """Cron expression of 5 fields, or of 6 with the second first (``"0 3 * * *"``); or an interval such as ``5m``."""
    zone: str | None = None
    """IANA time zone of the cron expression; null means the zone of the cluster."""
    args: str = "{}"
    """Arguments of the handler, as a JSON object."""
    start: str | None = None
    """No fire before this time (ISO 8601 with zone); the first fire of an interval."""
    end: str | None = None
    """No fire after this time (ISO 8601 with zone)."""
    jitter_seconds: Seconds = 0.0
    """Each job is due up to this much after its nominal time."""
    misfire: Misfire = Misfire.LAST
    """Fires that nothing could decide in time: ``skip`` them, make up for the ``last``, or for ``all`` up to
    ``misfire_max``."""
    misfire_max: Annotated[int, Meta(ge=1, le=MISFIRE_MAX_LIMIT)] = 10
    """Most fires that ``all`` makes up for, or that wait with ``overlap: queue``."""
    overlap: Overlap = Overlap.SKIP
    """A fire while a job of an earlier fire has not ended: ``skip``, ``queue``, ``parallel``, ``cancel_previous``."""
    tags: list[str] = field(default_factory=list)
    """Tags of the schedule and of its jobs."""
    priority: PriorityLabel | None = None
    """Priority of its jobs; null means the handler's."""
    lane: Name | None = None
    """Lane of its jobs; null means the handler's."""
    timeout_seconds: PositiveSeconds | None = None
    """How long one attempt may run; null means the handler's."""
    max_attempts: PositiveCount | None = None
    """Number of attempts, including the first; null means the handler's."""
    expires_seconds: PositiveSeconds | None = None
    """A job that has not started this long after its due time ends as EXPIRED."""
    tenant: str | None = None
    """For whom its jobs run; null means the handler's tenant."""


class JobLimitSettings(Section, frozen=True, kw_only=True):
    """Numbers of one limit; what is null is as in the code."""

    running: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Jobs that may run at once in the whole cluster, of each key."""
    rate: str | None = None
    """Starts in a time, of each key: ``50/s``, ``600/m``, ``10/5s``."""
    burst: Annotated[float, Meta(ge=1.0)] | None = None
    """Starts that may come at once after a pause; null with a rate means those of one second."""


class ClusterSettings(Section, frozen=True, kw_only=True):
    """All settings of one cluster. ``ClusterSettings()`` is a working embedded cluster."""

    cluster: Name = "default"
    """Name of the cluster; clusters of different names can share servers."""
    data_dir: str = "~/.jobmaster"
    """Where embedded servers keep their data (unused with URLs)."""
    master: MasterSettings = MasterSettings()
    """The master database."""
    stores: dict[Name, StoreSettings] = field(default_factory=lambda: {"default": StoreSettings()})
    """Agent stores by name."""
    agents: dict[Name, AgentSettings] = field(default_factory=lambda: {"default": AgentSettings()})
    """Kinds of agents by name."""
    handlers: list[HandlerPath] = field(default_factory=list)
    """Python module paths that declare handlers, ``package.module`` or ``package.module:attribute``."""
    zone: Annotated[str, Meta(min_length=1)] = "UTC"
    """IANA time zone of schedules with a cron expression and no zone of their own, such as ``Europe/Berlin``."""
    schedules: dict[Name, ScheduleSettings] = field(default_factory=dict)
    """Schedules by name, beside those that handlers declare with ``@handlers.every``."""
    job_limits: dict[LimitName, JobLimitSettings] = field(default_factory=dict)
    """Limits of jobs by name, in place of the numbers in the code of the handlers (``limit=``)."""
    thresholds: Thresholds = Thresholds()
    """Where jobs wait, and in batches of which size they move."""
    tenants: Tenants = Tenants()
    """Fair turns between the tenants of jobs."""
    leases: Leases = Leases()
    """How long agents, the leader and producers' caches count as current."""
    jobs: JobDefaults = JobDefaults()
    """Values of a job for which neither its handler nor its submit sets one."""
    limits: Limits = Limits()
    """Limits above which input is refused."""
    partitions: Partitions = Partitions()
    """Partitions of the job table by creation time."""
    retention: Retention = Retention()
    """How long jobs and the records beside them are kept; the leader deletes older records in small batches."""
    safety: Safety = Safety()
    """What agents do by themselves when a part of the cluster looks faulty."""
    observability: Observability = Observability()
    """Logs, metrics, traces and probes."""
    encryption: Encryption = Encryption()
    """Encryption of payloads."""
    web: Web = Web()
    """The web server: pages and HTTP API."""

    def schema_name(self) -> str:
        """PostgreSQL schema of this cluster."""
        return self.master.schema or f"jobmaster_{self.cluster.replace('-', '_')}"
