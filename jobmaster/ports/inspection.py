"""Ports of what operators see: reads of agents, buckets, rescues, what waits, and the operator log."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from jobmaster.model.inspection.failures import FailureGroup
from jobmaster.model.inspection.views import AgentView, BucketEvent, BucketView, OperatorAct, RescueView
from jobmaster.model.job import JobState
from jobmaster.model.job_view import JobFilter
from jobmaster.ports.store import AntiEntropyStore


class HeldGroup(NamedTuple):
    """HELD jobs of one lane and priority; each number is counted up to a bound."""

    lane: str
    priority: int
    held: int
    due: int
    overdue: int
    """Due for longer than a grace time."""
    oldest_us: int
    """Due time of the first, microseconds since 1970."""


class Inspected(NamedTuple):
    """The master at one moment."""

    now_us: int
    leader: bytes | None


class FailureStep(NamedTuple):
    """One step through a range of ids."""

    read_to: bytes
    """The lowest id that was read; the next step goes on below it."""
    groups: list[FailureGroup]


class OrderedJob(NamedTuple):
    """A job that comes before another one of its ordering key."""

    id: bytes
    state: JobState


class FullLimit(NamedTuple):
    """A limit of which a job was denied a permit."""

    name: str
    key: str
    running: int | None
    """Permits of the key; ``None``: any number."""
    rate: float | None
    """Starts a second; ``None``: any number."""
    taken: int


class InspectionQueries(Protocol):
    """Reads for operators."""

    async def now(self) -> Inspected:
        """The master's clock and the leader."""
        ...

    async def agents(self, *, ended: bool) -> list[AgentView]:
        """Agents, the living first; ``ended``: also those that have ended."""
        ...

    async def cordoned_hosts(self, deaths: int, cordon_seconds: float) -> dict[str, float]:
        """Hosts that are cordoned, with the seconds that are left.

        Args:
            deaths: certificates within the time that cordon a host.
            cordon_seconds: how long a host is cordoned.
        """
        ...

    async def buckets(self, *, retired: bool) -> list[BucketView]:
        """Buckets without their depths; ``retired``: also those that are about to lose their rows."""
        ...

    async def bucket_history(self, bucket_id: bytes) -> list[BucketEvent]:
        """What has become of one bucket, oldest first."""
        ...

    async def rescues(self, seconds: float | None, *, unfinished: bool, limit: int) -> list[RescueView]:
        """Buckets that were lost within some seconds, the latest first; ``unfinished``: those that are not over."""
        ...

    async def held(self, grace_seconds: float, count_max: int) -> list[HeldGroup]:
        """What waits in the master, by lane and priority."""
        ...

    async def paused_schedules(self) -> list[str]:
        """Names of the schedules that a person has paused."""
        ...

    async def acts(
        self, subject: str | None, actor: str | None, seconds: float | None, limit: int
    ) -> list[OperatorAct]:
        """The operator log, the latest line first.

        Args:
            subject: the beginning of it.
            actor: the whole, or the part before the ``@``.
        """
        ...

    async def failures(self, chosen: JobFilter, lowest: bytes, highest: bytes, *, reads: int) -> FailureStep:
        """Jobs of a range of ids that fit and have an error, by kind: one step, which reads at most ``reads`` rows."""
        ...

    async def ordered_before(self, key: str, job_id: bytes) -> OrderedJob | None:
        """The first job of an ordering key that keeps another one from starting."""
        ...

    async def ahead(self, lane: str, priority: int, due_us: int, count_max: int) -> int:
        """How many jobs of a lane and priority that wait in the master are due before a time; at most ``count_max``."""
        ...

    async def full_limits(self, bucket_id: bytes, seconds: float) -> list[FullLimit]:
        """Limits of which a job of a bucket was denied a permit within some seconds."""
        ...


class InspectionStore(AntiEntropyStore, Protocol):
    """An agent store, as far as an inspection reads it."""
