"""The knobs of a cluster as frozen structs: every field has a working default, a unit in its name, and a sentence.

This file owns the *shape* of the configuration and the relations between its numbers; reading YAML, environment and
command line is the business of the other files of this room. Durations are seconds (float), sizes are bytes (int).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta, field

from jobmaster.model.job import Durability, OnFull, Priority

Seconds = Annotated[float, Meta(ge=0.0)]
PositiveSeconds = Annotated[float, Meta(gt=0.0)]
Bytes = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
PositiveCount = Annotated[int, Meta(ge=1)]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,47}$")]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every block of the configuration is: frozen, keyword-only, closed to unknown keys."""


class AgentMode(StrEnum):
    """What an agent does. ``coordinator`` owns no buckets; ``execution`` never coordinates; ``drain`` only rescues."""

    FULL = "full"
    EXECUTION = "execution"
    COORDINATOR = "coordinator"
    DRAIN = "drain"


class MasterSettings(Section):
    """The master database (PostgreSQL >= 15)."""

    dsn: str | None = None
    """libpq URL; ``None`` means the embedded server of ``data_dir``."""
    schema: Annotated[str, Meta(pattern=r"^[a-z_][a-z0-9_]{0,62}$")] | None = None
    """PostgreSQL schema that holds this cluster; default ``jobmaster_<cluster id>``."""
    pool_size: PositiveCount = 4
    """Data connections of one process; the heartbeat and the coordinator have one more each."""
    connect_timeout_seconds: PositiveSeconds = 5.0
    statement_timeout_seconds: PositiveSeconds = 10.0
    lock_timeout_seconds: PositiveSeconds = 2.0


class StoreSettings(Section):
    """One agent store (Redis >= 7.0 or Valkey >= 7.2)."""

    url: str | None = None
    """``redis://``, ``rediss://`` or ``unix://`` URL; ``None`` means the embedded server of ``data_dir``."""
    connect_timeout_seconds: PositiveSeconds = 5.0
    call_timeout_seconds: PositiveSeconds = 5.0
    high_water_jobs: PositiveCount = 200_000
    """Jobs waiting in one bucket above which submits get FULL and the owner spills to the master."""
    high_water_bytes: Annotated[int, Meta(ge=1)] = 256 * 1024 * 1024


class BucketCounts(Section):
    """How many buckets of each priority an agent owns."""

    critical: Count = 1
    high: Count = 1
    medium: Count = 1
    low: Count = 1
    very_low: Count = 1

    def of(self, priority: Priority) -> int:
        """Number of buckets for one priority."""
        return int(getattr(self, priority.label))


class AgentSettings(Section):
    """One named kind of agent: ``jobmaster agent run --name <key>`` starts it."""

    mode: AgentMode = AgentMode.FULL
    store: Name = "default"
    processes: PositiveCount = 1
    lanes: dict[Name, BucketCounts] = field(default_factory=dict)
    """Bucket counts per lane; empty means ``buckets`` in lane ``default``."""
    buckets: BucketCounts = BucketCounts()
    slots: PositiveCount = 50
    """Jobs of one bucket that may run at once."""
    bucket_buffer: Count = 1000
    """Jobs of one bucket that may be held claimed beyond the running ones."""
    max_running: PositiveCount = 500
    """Jobs of all buckets of one process that may run at once."""
    weight: Count = 1
    """Preference in the coordinator election; 0 never coordinates."""
    threads: PositiveCount = 16
    """Threads for ``thread`` handlers of one process."""
    isolated_processes: PositiveCount = 2
    """Worker processes for ``process`` handlers of one process."""

    def bucket_counts(self) -> dict[str, BucketCounts]:
        """Lane -> counts, with the shorthand ``buckets`` resolved."""
        return dict(self.lanes) if self.lanes else {"default": self.buckets}


class Thresholds(Section):
    """Where jobs wait and in what portions they move."""

    transient_threshold_seconds: PositiveSeconds = 300.0
    """How long before its due time a job may leave the master for a bucket."""
    transfer_batch: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    """Jobs of one onboarding, drain or insert statement."""
    persist_within_seconds: PositiveSeconds = 1.0
    """A claimed job that has not ended by then gets its row in the master."""
    age_boost_seconds: Seconds = 900.0
    """Waiting this long lifts a job by one priority when one process must choose; 0 turns it off."""
    assigned_low_water: PositiveCount = 2000
    """Onboarded jobs waiting in one bucket below which its owner fetches more."""


class Leases(Section):
    """Who is alive, and for how long that is believed (seconds)."""

    lease_seconds: Annotated[float, Meta(ge=0.2, le=600.0)] = 10.0
    renew_seconds: PositiveSeconds = 3.0
    store_beat_seconds: PositiveSeconds = 1.0
    coordinator_lease_seconds: PositiveSeconds = 3.5
    coordinator_renew_seconds: PositiveSeconds = 1.0
    grace_seconds: Seconds = 25.0
    """How long a graceful exit waits for running and queued jobs."""
    tombstone_seconds: PositiveSeconds = 120.0
    """How long a retired bucket is remembered; longer than any producer's cached bucket map."""
    bucket_map_seconds: PositiveSeconds = 10.0
    """Age at which a producer refreshes its cached bucket map."""

    def __post_init__(self) -> None:
        if self.renew_seconds * 3 > self.lease_seconds:
            raise ValueError(
                f"leases.renew ({self.renew_seconds:g}s) must be at most a third of leases.lease ({self.lease_seconds:g}s)"
            )
        if self.coordinator_renew_seconds * 3 > self.coordinator_lease_seconds:
            raise ValueError(
                f"leases.coordinator_renew ({self.coordinator_renew_seconds:g}s) must be at most a third of "
                f"leases.coordinator_lease ({self.coordinator_lease_seconds:g}s)"
            )
        if self.tombstone_seconds <= self.bucket_map_seconds * 2:
            raise ValueError("leases.tombstone must be more than twice leases.bucket_map")


class JobDefaults(Section):
    """What a job gets when neither its handler nor its submit says otherwise."""

    priority: str = "medium"
    lane: Name = "default"
    durability: Durability = Durability.AGENT
    timeout_seconds: PositiveSeconds = 300.0
    max_attempts: PositiveCount = 4
    backoff_seconds: Seconds = 5.0
    backoff_factor: Annotated[float, Meta(ge=1.0)] = 2.0
    backoff_max_seconds: PositiveSeconds = 3600.0
    backoff_jitter: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.2
    max_rescues: PositiveCount = 3
    on_full: OnFull = OnFull.BLOCK
    on_full_timeout_seconds: PositiveSeconds = 30.0


class Limits(Section):
    """Sizes above which input is refused, with the limit named."""

    args_bytes: Bytes = 128 * 1024
    result_bytes: Bytes = 128 * 1024
    headers_bytes: Bytes = 16 * 1024
    error_bytes: Bytes = 16 * 1024
    tags: Count = 16
    tag_chars: PositiveCount = 64
    due_ahead_days: PositiveCount = 3660
    """A due time further ahead than this is refused."""
    clock_skew_seconds: PositiveSeconds = 3600.0
    submit_chunk_jobs: Annotated[int, Meta(ge=1, le=5000)] = 1000


class Partitions(Section):
    """How the job table is cut by creation time."""

    span: Annotated[str, Meta(pattern="^(day|week|month)$")] = "day"
    ahead_days: PositiveCount = 7


class Observability(Section):
    """What can be watched, and where."""

    log_level: Annotated[str, Meta(pattern="^(debug|info|warning|error)$")] = "info"
    log_format: Annotated[str, Meta(pattern="^(text|json)$")] = "text"
    metrics_port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    """Port of the Prometheus endpoint and the probes on 127.0.0.1; ``None`` = off, 0 = any free port."""


class ClusterSettings(Section):
    """Everything about one cluster. ``ClusterSettings()`` is a working embedded cluster."""

    cluster: Name = "default"
    data_dir: str = "~/.jobmaster"
    """Where embedded servers keep their data (unused with URLs)."""
    master: MasterSettings = MasterSettings()
    stores: dict[Name, StoreSettings] = field(default_factory=lambda: {"default": StoreSettings()})
    agents: dict[Name, AgentSettings] = field(default_factory=lambda: {"default": AgentSettings()})
    handlers: list[str] = field(default_factory=list)
    """Python module paths that declare handlers, ``package.module`` or ``package.module:attribute``."""
    thresholds: Thresholds = Thresholds()
    leases: Leases = Leases()
    jobs: JobDefaults = JobDefaults()
    limits: Limits = Limits()
    partitions: Partitions = Partitions()
    observability: Observability = Observability()

    def schema_name(self) -> str:
        """PostgreSQL schema of this cluster."""
        return self.master.schema or f"jobmaster_{self.cluster.replace('-', '_')}"
