"""Ports of an agent store: the calls of each consumer in an agent.

``jobmaster.agentstore.store.AgentStore`` implements all of them. A Protocol is named after its consumer; what two consumers
call is a Protocol that both inherit, so each signature is written once. Ports of clients are in ``jobmaster.ports.client``.

The caller's fence (bucket, epoch, owner) guards every write to a bucket. The implementation keeps generation and
change-counter floor per bucket and sends them with each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jobmaster.model.bucket import BucketBacklog, BucketDepth, StoreOnlyJobs
from jobmaster.model.ids import Fence
from jobmaster.model.job import Entry
from jobmaster.ports.store_answers import Claimed, KeptPage, Page, ReplyStatus
from jobmaster.rules.batching import BATCH_BYTES

# ------------------------------------------------------------ the server


class ReachStore(Protocol):
    """For the check that a store answers."""

    async def ping(self) -> None:
        """Returns when the server has answered a PING."""
        ...


class BeatStore(Protocol):
    """For the heartbeat in the store."""

    async def beat(self, agent_id: bytes, ttl_seconds: float) -> None:
        """Heartbeat key of an agent, gone after ``ttl_seconds`` by the server's clock."""
        ...


class LeaseStore(Protocol):
    """For the store lease, under which an agent works while the master is away."""

    async def grant_term(self, fence: Fence, term_seconds: float) -> ReplyStatus:
        """OK: the bucket is still the caller's, and no rescuer begins for so long; 0 takes that back."""
        ...


# ------------------------------------------------------------ reads


class FindStore(Protocol):
    """Copies of jobs, by id."""

    async def find(
        self, bucket_ids: Sequence[bytes], job_ids: Sequence[bytes], scan_max: int
    ) -> list[dict[bytes, Entry]]:
        """Which of these jobs (at most ``FIND_IDS_MAX``) lie among the first ``scan_max`` of each bucket, by id; one scan
        of a bucket's lists for all of them. Nothing for a bucket that the store does not have."""
        ...


class BacklogStore(Protocol):
    """For the figures of how much waits."""

    async def backlogs(self, bucket_ids: Sequence[bytes]) -> list[BucketBacklog | None]:
        """What waits in each bucket to be run; ``None`` where the store has no such bucket."""
        ...


class AntiEntropyStore(FindStore, Protocol):
    """For the comparison of rows with copies."""

    async def depths(self, bucket_ids: Sequence[bytes]) -> list[BucketDepth | None]:
        """What lies in each bucket; ``None`` where the store has no such bucket."""
        ...


class KnownBucketsStore(Protocol):
    """The buckets of a store."""

    async def known_buckets(self) -> list[bytes]:
        """Every bucket that has keys in this store for this cluster (bounded scan)."""
        ...


class AuditStore(AntiEntropyStore, KnownBucketsStore, Protocol):
    """For the auditor."""


class FloorStore(KnownBucketsStore, Protocol):
    """For the check before the floor rises."""

    async def store_only_jobs(self, bucket_id: bytes) -> StoreOnlyJobs:
        """Jobs of one bucket that may have no row in the master."""
        ...


# ------------------------------------------------------------ buckets


class ProvisionerStore(Protocol):
    """For the bucket provisioner."""

    async def open_bucket(self, fence: Fence) -> ReplyStatus:
        """Make an ACTIVE bucket; OK again for the same fence."""
        ...


class OwnershipStore(Protocol):
    """For the ownership check."""

    async def freeze(self, bucket_id: bytes, epoch: int, owner: bytes) -> ReplyStatus:
        """An operator's freeze, put where producers see it: the bucket of this epoch and owner takes and gives no jobs."""
        ...

    async def unfreeze(self, fence: Fence, list_name: str) -> ReplyStatus:
        """The owner takes its unfrozen bucket up again, under the new epoch of the fence. Copies in ``assigned``, whose rows
        have the old one, are moved to ``claimed:<list_name>``, to be given back. Under the same epoch: a freeze that the
        master does not have is over, and nothing is moved."""
        ...


class PagesStore(Protocol):
    """The content of a bucket that takes no more jobs, page by page."""

    async def read_page(self, fence: Fence, limit: int, bytes_max: int = BATCH_BYTES) -> Page:
        """Next page, in the order kept, claimed, pending, assigned: at most ``limit`` of together ``bytes_max`` bytes, or
        one."""
        ...

    async def remove_page(self, fence: Fence, page: Page) -> ReplyStatus:
        """Remove exactly what ``read_page`` returned; sent again, nothing more is removed."""
        ...

    async def close_if_empty(self, fence: Fence) -> ReplyStatus:
        """No new job can come after OK; NOT_EMPTY otherwise."""
        ...


class ShutdownStore(PagesStore, Protocol):
    """For the graceful shutdown of a bucket."""

    async def close_intake(self, fence: Fence) -> ReplyStatus:
        """ACTIVE -> COMPLETING: producers and onboarding get CLOSED from now on."""
        ...


class EvacuationStore(PagesStore, Protocol):
    """For the evacuation of a bucket, under the rescuer's own fence."""

    async def fence(self, fence: Fence) -> tuple[ReplyStatus, int]:
        """Take the bucket in the store for a rescuer: accepted for a higher epoch, or the same epoch and owner; creates
        the meta of a lost store. FENCED returns the epoch found, LEASED the microseconds to wait before the first page."""
        ...


class MaintenanceStore(KnownBucketsStore, Protocol):
    """For maintenance tasks."""

    async def known_lists(self, bucket_id: bytes) -> list[str]:
        """Claimed lists of a bucket whose keys are here, also such as the bucket does not name (bounded scan)."""
        ...

    async def delete_bucket(self, bucket_id: bytes, lists: Sequence[str] = ()) -> ReplyStatus:
        """Remove the keys of a retired bucket; NOT_EMPTY (and nothing removed) when something lies there. ``lists`` are
        claimed lists whose keys were found: one that the bucket does not name is named again."""
        ...


# ------------------------------------------------------------ jobs of a bucket


class HintStore(Protocol):
    """For the notice of due jobs."""

    async def hint(self, bucket_id: bytes) -> None:
        """HELD jobs of the bucket's lane and priority are due: its owner shall onboard them."""
        ...


class WakeStore(Protocol):
    """For the wake listener."""

    async def wait_wake(self, bucket_ids: Sequence[bytes], timeout_seconds: float) -> bytes | None:
        """Block until one of the buckets has a wake token; its id, or ``None`` after the time-out."""
        ...


class ClaimerStore(Protocol):
    """For the claimer of a bucket."""

    async def claim(
        self, fence: Fence, list_name: str, limit: int, bytes_max: int = BATCH_BYTES, *, oldest: bool = False
    ) -> Claimed:
        """Move up to ``limit`` jobs (the oldest of ``pending`` and of the due part of ``assigned``), of together at most
        ``bytes_max`` bytes, to ``claimed:<list_name>`` and return them; one is always moved. Sent again with the same name:
        the same list. With ``oldest`` the answer shows how old the first job is that is left."""
        ...

    async def claimed_lists(self, fence: Fence) -> tuple[ReplyStatus, list[str]]:
        """Names of the claimed lists of the bucket."""
        ...

    async def read_claimed(self, fence: Fence, list_name: str) -> Claimed:
        """One claimed list as it lies there; empty when there is none."""
        ...


class CancellationStore(Protocol):
    """For cancel requests of jobs that the owner has not claimed."""

    async def withdraw(
        self, fence: Fence, noted: Sequence[bytes], copies: Sequence[tuple[int, bytes]]
    ) -> tuple[ReplyStatus, frozenset[bytes]]:
        """Take ``(due_us, job_id)`` of cancelled jobs out of ``assigned``, and cancel requests that the owner has noted;
        the ids of the copies that were there."""
        ...


class AssignedStore(FindStore, Protocol):
    """For copies of assigned jobs."""

    async def assign(self, fence: Fence, items: Sequence[tuple[int, bytes]]) -> ReplyStatus:
        """``(due_us, encoded entry)`` into ``assigned`` (onboarding, retry here)."""
        ...


class AcknowledgerStore(Protocol):
    """For the acknowledgement of settled jobs."""

    async def settle(self, fence: Fence, list_names: Sequence[str], finished: Sequence[bytes]) -> ReplyStatus:
        """Delete claimed lists whose every entry is settled; publish the finished ids."""
        ...


class WriterStore(AcknowledgerStore, AssignedStore, Protocol):
    """For the outcome writer."""


class KeptStore(Protocol):
    """For outcomes that the store keeps while the master is away."""

    async def keep_outcomes(self, fence: Fence, outcomes: Sequence[bytes], list_names: Sequence[str]) -> ReplyStatus:
        """Keep outcomes, and delete the claimed lists they come from, atomically."""
        ...


class ReplayStore(Protocol):
    """For the replay of kept outcomes."""

    async def read_kept(self, fence: Fence, limit: int, bytes_max: int = BATCH_BYTES) -> KeptPage:
        """The oldest kept outcomes of a working bucket: at most ``limit`` of together ``bytes_max`` bytes, or one."""
        ...

    async def remove_kept(self, fence: Fence, page: Sequence[bytes], back: Sequence[bytes]) -> ReplyStatus:
        """Take out exactly one page that was read; ``back``, some of it, goes to the end again."""
        ...


class WorkerStore(
    ShutdownStore, WakeStore, ClaimerStore, CancellationStore, WriterStore, KeptStore, ReplayStore, Protocol
):
    """For an agent's work on its buckets."""
