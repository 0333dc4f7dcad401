"""The coordinator's house-keeping, and the owner's comparison of rows."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from jobmaster.model.bucket import Bucket
from jobmaster.model.ids import Identity
from jobmaster.ports.rescue import Swept
from jobmaster.rules.serving import Lack


class Leftover(StrEnum):
    """What is written beside jobs, and kept for a time."""

    AGENTS = "agents"
    KEYS = "keys"
    QUARANTINE = "quarantine"
    OPERATOR_LOG = "operator_log"
    BUCKET_EVENTS = "bucket_events"
    PUT_OFF = "put_off"


class DueGroup(NamedTuple):
    """HELD jobs of one lane and priority are within the horizon."""

    lane: str
    priority: int


class Tended(NamedTuple):
    """Answer of the coordinator's one statement per second."""

    epoch: int | None
    """Epoch of the office, now renewed; ``None`` when another agent holds it."""
    due: list[DueGroup]
    """As ``due_groups`` would answer; empty without the office."""
    overdue: bool
    """Some agent's lease is over and it has no certificate yet: somebody should judge."""
    heavier: bool = False
    """An agent of greater weight could lead: it should have the office."""


class Unserved(NamedTuple):
    """Overdue jobs of a handler that no owner of a bucket of their lane and priority has."""

    lack: Lack
    jobs: int
    """At most as many as were looked at."""
    oldest_us: int
    """When the oldest of them was due."""


class Help(NamedTuple):
    """An agent that is asked, or not asked any more, to have a bucket for jobs that nobody serves."""

    lane: str
    priority: int
    handler: str
    helper: bytes


class RowRef(NamedTuple):
    """One in-flight row, for anti-entropy."""

    id: bytes
    identity: Identity
    state: str
    changed_us: int


class Upkeep(Protocol):
    """The coordinator's house-keeping."""

    async def due_groups(self, horizon_seconds: float) -> list[DueGroup]:
        """Lanes and priorities that have HELD rows within the horizon (index probes only)."""
        ...

    async def tend(self, agent_id: bytes, weight: int, lease_seconds: float, horizon_seconds: float) -> Tended:
        """``lead`` for who leads already, ``due_groups``, and a look at overdue leases, in one statement: the coordinator
        asks every second and has a budget of two queries."""
        ...

    async def return_orphans(self, grace_seconds: float, limit: int, *, max_rescues: int) -> Swept:
        """In-flight rows whose (bucket, epoch) is no live bucket -> HELD, by compare-and-set, after a grace period. One that
        was PROCESSING counts a rescue, and at ``max_rescues`` becomes FAILED with reason ``agent_lost``, as in a sweep."""
        ...

    async def unserved(self, overdue_seconds: float, look: int) -> list[Unserved]:
        """What waits for a handler that nobody brings: among the ``look`` oldest jobs of each lane and priority that are
        overdue by so much, and among those that are put off."""
        ...

    async def put_off(
        self, group: DueGroup, handlers: Sequence[str], overdue_seconds: float, again_seconds: float, limit: int
    ) -> int:
        """Such jobs are due again in ``again_seconds``, so that nobody reads over them; how many. Their own due time is
        kept until ``put_back``."""
        ...

    async def put_back(self, limit: int) -> int:
        """Jobs that were put off and can be served now have their own due time again; how many lines were settled."""
        ...

    async def ask_help(self, lacks: Sequence[Lack]) -> list[Help]:
        """Ask an agent that could run them to open a bucket for jobs that nobody serves; who was newly asked."""
        ...

    async def end_help(self) -> list[Help]:
        """Ask no more where a configured owner can run the same jobs, or where that agent has ended."""
        ...

    async def forget_buckets(
        self, tombstone_seconds: float, stores: Sequence[str], *, others: bool = False
    ) -> list[Bucket]:
        """Buckets of these stores READY_TO_DELETE for longer than the tombstone time (the caller deletes their keys, then
        ``drop``); ``others``: of every other store."""
        ...

    async def drop_bucket(self, bucket_id: bytes) -> None:
        """Delete the tombstone of a bucket whose keys are gone."""
        ...

    async def forget(self, what: Leftover, days: float, limit: int) -> int:
        """Remove what is older and not needed any more, at most ``limit`` rows; how many."""
        ...

    async def expire_unconfirmed(self, limit: int) -> int:
        """WAITING rows whose confirmation has not come in time -> HELD or FAILED."""
        ...

    async def expire_held(self, limit: int) -> int:
        """HELD rows past their ``expires`` -> EXPIRED."""
        ...

    async def ensure_partitions(self, span: str, ahead_days: int) -> list[str]:
        """Partitions from the watermark to ``ahead_days`` ahead exist; the names of the new ones."""
        ...

    async def give_back(self, bucket_id: bytes, rows: Sequence[RowRef]) -> int:
        """In-flight rows of which the bucket's owner has no copy -> HELD with token + 1, by identity; how many."""
        ...

    async def bucket_rows(self, bucket_id: bytes, after: bytes | None, limit: int) -> list[RowRef]:
        """In-flight rows that name a bucket, keyset-paged by id."""
        ...
