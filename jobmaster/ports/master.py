"""Ports of the master: what each consumer calls.

``jobmaster.master.master.Master`` is made of parts (``outcomes``, ``buckets``, ...), and here is one Protocol for each part.
A consumer that calls few methods of a part has a slice of it, named after the consumer; a part inherits its slices, so each
signature is written once. Consumers of several parts take one of the Protocols at the end, which name the parts.

Every method is one statement, or a bounded number of them, and is bounded in time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from jobmaster.model.agent import Agent, HandlerSpec
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.bucket_map import MapChanges, MapVersion
from jobmaster.model.cluster import ClusterMode, ClusterRow
from jobmaster.model.ids import Fence
from jobmaster.model.inspection.views import AgentStatistics
from jobmaster.model.job import Entry
from jobmaster.model.pause import PausesInForce
from jobmaster.ports.job_logs import KeptJobLogs
from jobmaster.ports.job_rows import Onboarding, Outcomes, RecoveryOutcomes, ShutdownOnboarding
from jobmaster.ports.limits import LimitedStarts
from jobmaster.ports.master_answers import (
    DueGroup,
    HelpRequest,
    HostCordon,
    LeaderTick,
    MasterBacklog,
    Reassigned,
    RecordKind,
    Renewal,
    StoreGeneration,
    Suspicion,
    Swept,
    UnservedHandler,
    Written,
)
from jobmaster.ports.signals import MaintenanceSignals
from jobmaster.rules.unserved_cause import UnservedCause

# ------------------------------------------------------------ agents


class HeartbeatMembers(Protocol):
    """For the heartbeat."""

    async def renew(self, agent_id: bytes, lease_seconds: float, statistics: AgentStatistics | None = None) -> Renewal:
        """Renew the agent's lease, on a connection of its own; takes no lock of a job.

        Args:
            statistics: what its process does; ``None``: as published before.
        """
        ...


class DetectorMembers(Protocol):
    """For the failure detector."""

    async def certify_dead(self, certifier: bytes, limit: int) -> list[bytes]:
        """Death certificates for agents whose lease ran out, each one compare-and-set on the agent row; their buckets
        become LOST in the same transaction. Refused until the certifier has held its lease for one full term and the server
        has been up as long."""
        ...


class Members(HeartbeatMembers, DetectorMembers, Protocol):
    """Agents, their leases and certificates."""

    async def register(self, agent: Agent, lanes: Sequence[str], handlers: Sequence[HandlerSpec]) -> ClusterMode:
        """Agent row with a fresh lease; publishes the handlers' specs."""
        ...

    async def publish_slots(self, agent_id: bytes, slots: int) -> None:
        """How many jobs the agent may run at once from now on; a figure for autoscalers."""
        ...

    async def announce_stopping(self, agent_id: bytes) -> None:
        """ACTIVE -> STOPPING, for display only."""
        ...

    async def request_drain(self, agent_id: bytes, actor: str) -> bool:
        """Request a graceful exit; the agent reads it with its next renewal. False when it has ended."""
        ...

    async def end_agent(self, agent_id: bytes, *, dead: bool, reason: str, process_ended: bool = False) -> bool:
        """``dead``: death certificate without waiting for the lease, allowed only on *proof* (waitpid, or the agent itself):
        agent DEAD and its buckets LOST in one transaction. Otherwise RETIRED, refused while it still owns a bucket that is
        neither READY_TO_DELETE nor LOST. ``process_ended``: the caller has seen the process end (waitpid). Permits that were
        lent to the agent are free at once; otherwise when its last bucket is rescued."""
        ...


class Leadership(Protocol):
    """The leader's lease."""

    async def acquire(self, agent_id: bytes, weight: int, lease_seconds: float) -> int | None:
        """Take the lease when it is free, or renew it; its epoch, ``None`` when another agent holds it. A heavier
        candidate takes over when the lease of a lighter one expires."""
        ...

    async def transfer(self, agent_id: bytes, weight: int, epoch: int) -> bytes | None:
        """Give the lease to the heaviest agent that could lead, with epoch + 1; its id, ``None`` when no agent is heavier
        than ``weight`` or the lease is not held under this epoch."""
        ...

    async def resign(self, agent_id: bytes, epoch: int) -> None:
        """Give the lease back at once."""
        ...

    async def tick(self, agent_id: bytes, weight: int, lease_seconds: float, horizon_seconds: float) -> LeaderTick:
        """Renew the lease, list what is due, and look for overdue agents, in one statement: the leader calls every second
        and has a budget of two statements."""
        ...


class DueNotices(Protocol):
    """Notices of submits in SQL."""

    async def listen(self, on_notice: Callable[[str, int], None], on_lost: Callable[[], None]) -> bool:
        """Call ``on_notice`` with lane and priority of each notice, ``on_lost`` when none will come any more; False: it
        listens already, and the connection answers."""
        ...

    async def stop(self) -> None:
        """Listen no more."""
        ...


# ------------------------------------------------------------ buckets


class MoveBuckets(Protocol):
    """Changes of a bucket's state by its owner."""

    async def move_bucket(self, bucket_id: bytes, epoch: int, owner: bytes, to: BucketState, reason: str) -> bool:
        """Compare-and-set of a bucket's state by its present owner and epoch, with a ``bucket_event``. No owner moves it out
        of READY_TO_DELETE: that is ``resurrect_retired``."""
        ...


class LossBuckets(MoveBuckets, Protocol):
    """For a bucket that its store has lost."""

    async def note_loss(self, fence: Fence, store: str, at_risk: int, salvaged: int, reason: str) -> None:
        """Record that the store has lost the bucket. Sent again, nothing is added.

        Args:
            at_risk: jobs without a row, and kept outcomes, that the owner last saw in the bucket and has no copy of.
            salvaged: jobs without a row of which the owner had a copy and wrote it to the master.
        """
        ...


class OwnershipBuckets(MoveBuckets, Protocol):
    """For the ownership check."""

    async def owned_buckets(self, agent_id: bytes) -> list[Bucket]:
        """Every bucket that names the agent as its owner; retired ones while their tombstone exists."""
        ...


class SuspicionMaintenance(Protocol):
    """For suspicions."""

    async def suspicious(self, store_losses: int) -> list[Suspicion]:
        """Evidence in the history of live buckets and in the losses of stores."""
        ...

    async def note_suspicion(self, kind: str, subject: str, detail: str, *, freezes: bool) -> bool:
        """Record a suspicion for operators; False when it was recorded in the last hour."""
        ...


class SuspicionBuckets(Protocol):
    """For suspicions."""

    async def freeze(
        self, bucket_ids: Sequence[bytes] | None, lane: str | None, actor: str, reason: str
    ) -> list[Bucket]:
        """ACTIVE -> FROZEN: the buckets that this call froze."""
        ...


class SuspicionMaster(Protocol):
    """For suspicions."""

    @property
    def maintenance(self) -> SuspicionMaintenance: ...

    @property
    def buckets(self) -> SuspicionBuckets: ...


class HostMembers(Protocol):
    """For the standing of the agent's host."""

    async def host_standing(self, agent_id: bytes, deaths: int, cordon_seconds: float) -> HostCordon | None:
        """Whether the host of an agent is cordoned; ``None``: it is not."""
        ...


class ProvisionerBuckets(Protocol):
    """For the bucket provisioner."""

    async def create_buckets(self, buckets: Sequence[Bucket]) -> bool:
        """New ACTIVE buckets of a living owner, in one transaction; False when the owner is no longer alive."""
        ...


class MaintenanceBuckets(Protocol):
    """For maintenance tasks."""

    async def resurrect_bucket(self, bucket: Bucket, reason: str) -> bool:
        """A bucket that has keys but no row -> LOST, above every epoch it ever had. False: it has a row, or the owner has
        ended."""
        ...

    async def resurrect_retired(self, bucket: Bucket, reason: str) -> bool:
        """READY_TO_DELETE -> LOST: the keys of a retired bucket hold jobs. False: its row has changed, or is gone."""
        ...

    async def forget_buckets(
        self, tombstone_seconds: float, stores: Sequence[str], *, others: bool = False
    ) -> list[Bucket]:
        """Buckets of these stores (``others``: of every other store) READY_TO_DELETE for longer than the tombstone time. The
        caller deletes their keys, then calls ``drop_bucket``."""
        ...

    async def drop_bucket(self, bucket_id: bytes) -> None:
        """Delete the tombstone of a bucket whose keys are gone."""
        ...


class Buckets(LossBuckets, OwnershipBuckets, ProvisionerBuckets, MaintenanceBuckets, Protocol):
    """Buckets, from creation to deletion."""

    async def freeze(
        self, bucket_ids: Sequence[bytes] | None, lane: str | None, actor: str, reason: str
    ) -> list[Bucket]:
        """ACTIVE -> FROZEN, by an operator: the buckets that this call froze, each with a line in the operator's log.

        Args:
            bucket_ids: ``None``: all of them (of the lane).
            lane: ``None``: every lane.
        """
        ...

    async def unfreeze(
        self, bucket_ids: Sequence[bytes] | None, lane: str | None, actor: str, reason: str
    ) -> list[Bucket]:
        """FROZEN -> ACTIVE with epoch + 1; the owners resume them at their next renewal. Arguments as for ``freeze``."""
        ...


# ------------------------------------------------------------ rescue


class EvacuationRescue(Protocol):
    """For the evacuation of a bucket, each page under the rescuer's *own* epoch (rule C)."""

    async def rescue_page(
        self, fence: Fence, entries: Sequence[Entry], lane: str, priority: int, *, claimed: bool, max_rescues: int
    ) -> Written:
        """Entries found in the store -> HELD with token + 1 (no row: token 2). ``claimed`` entries never rescued before and
        rows that are PROCESSING count one rescue, and one that reaches ``max_rescues`` becomes FAILED with reason
        ``agent_lost``. Rows that are final or name another bucket stay as they are (*refused*)."""
        ...

    async def sweep(self, fence: Fence, limit: int, *, max_rescues: int) -> Swept:
        """In-flight rows that still name this bucket with an older epoch -> HELD (PROCESSING counts a rescue).
        Repeat until none was moved."""
        ...

    async def close_drained(self, fence: Fence, moved: int, rescued: int) -> bool:
        """DRAINING -> READY_TO_DELETE when no in-flight row names the bucket. False: sweep again, or, when there is nothing
        to sweep, another rescuer has the bucket."""
        ...


class Rescue(EvacuationRescue, Protocol):
    """For rescuers."""

    async def take_lost(
        self, agent_id: bytes, stores: Sequence[str], floor_epochs: Mapping[bytes, int]
    ) -> Bucket | None:
        """One LOST bucket of the given stores -> DRAINING with epoch ``max(master, floor) + 1``, owned by the agent; ends
        the database sessions of dead owners first. ``None``: there is none."""
        ...


# ------------------------------------------------------------ leader


class FallbackUnserved(Protocol):
    """For an agent that has a fallback bucket."""

    async def stop_helping(self, agent_id: bytes, lane: str, priority: int) -> None:
        """The agent had no work there: its request ends."""
        ...


class ProvisionerUnserved(Protocol):
    """For the bucket provisioner."""

    async def put_back(self, limit: int) -> int:
        """Restore the due time of jobs that were put off and can be served now; number of settled lines."""
        ...


class LeaderUnserved(ProvisionerUnserved, Protocol):
    """For the leader."""

    async def find(self, overdue_seconds: float, look: int) -> list[UnservedHandler]:
        """Jobs whose handler no owner has: among the ``look`` oldest jobs of each lane and priority that are overdue by at
        least this time, and among those that are put off."""
        ...

    async def put_off(
        self, group: DueGroup, handlers: Sequence[str], overdue_seconds: float, again_seconds: float, limit: int
    ) -> int:
        """Make such jobs due again in ``again_seconds``, so that no owner reads over them; number of them. Their own due
        time is kept until ``put_back``."""
        ...

    async def put_off_paused(self, overdue_seconds: float, again_seconds: float, limit: int) -> int:
        """The same for jobs of paused handlers or with paused tags, of every lane and priority; at the end of the pause if
        that is sooner."""
        ...

    async def count_paused(self, look: int) -> int:
        """Due jobs that pauses keep from starting: among the ``look`` oldest of each lane and priority, and among those that
        are put off."""
        ...

    async def request_help(self, causes: Sequence[UnservedCause]) -> list[HelpRequest]:
        """Request that an agent which has the handler opens a bucket for unserved jobs; the new requests."""
        ...

    async def end_help(self) -> list[HelpRequest]:
        """End help where a configured owner can run the same jobs, or where the helper has ended."""
        ...


class UnservedJobs(LeaderUnserved, FallbackUnserved, Protocol):
    """Overdue jobs whose handler no owner of a matching bucket has."""


class PauseReader(Protocol):
    """For an agent, which obeys the pauses."""

    async def in_force(self) -> PausesInForce:
        """The version of the pauses, and those that are not over, at one moment."""
        ...

    async def obey(self, agent_id: bytes, version: int) -> bool:
        """Publish that the agent has applied a version; False when it has ended."""
        ...


class Maintenance(Protocol):
    """Maintenance tasks of the leader."""

    async def return_orphans(self, grace_seconds: float, limit: int, *, max_rescues: int) -> Swept:
        """In-flight rows whose (bucket, epoch) is no live bucket -> HELD, by compare-and-set, after a grace period. A row
        that was PROCESSING counts a rescue, and at ``max_rescues`` becomes FAILED with reason ``agent_lost``."""
        ...

    async def forget(self, record: RecordKind, days: float, limit: int) -> int:
        """Delete older records that are not needed any more, at most ``limit`` rows; number of them."""
        ...

    async def expire_held(self, limit: int) -> int:
        """HELD rows past their ``expires`` -> EXPIRED; number of them."""
        ...

    async def expire_unconfirmed(self, limit: int) -> int:
        """WAITING rows whose confirmation has not come in time -> HELD or FAILED; number of them."""
        ...

    async def reassign_late(self, limit: int, *, max_reassigns: int) -> Reassigned:
        """PROCESSING rows past their ``complete_time`` -> HELD with token + 1, or FAILED with the reason ``too_slow`` when a
        job was reassigned ``max_reassigns`` times. At most ``limit`` rows, never of a job that is started at most once."""
        ...

    async def ensure_partitions(self, span: str, ahead_days: int) -> list[str]:
        """Create the partitions from the watermark to ``ahead_days`` ahead; the names of the new ones."""
        ...


class Stores(Protocol):
    """Agent stores of the cluster."""

    async def store_generation(self, name: str, proposed: bytes) -> StoreGeneration:
        """The generation of a store in the master (``proposed`` when the master had none), and whether it has served."""
        ...


# ------------------------------------------------------------ queries


class ListBuckets(Protocol):
    """The list of buckets."""

    async def list_buckets(self, *, states: Sequence[BucketState] = ()) -> list[Bucket]:
        """Buckets in some states (none named: all), in no order."""
        ...


class BucketQueries(Protocol):
    """The map of buckets."""

    async def bucket_map(self, known: MapVersion | None) -> MapChanges:
        """What has changed in the map of buckets since a version (``None``: all of it), and the new version."""
        ...


class BacklogQueries(Protocol):
    """For the figures of how much waits."""

    async def backlog(self, jobs_max: int) -> MasterBacklog:
        """HELD jobs, buckets and agents. Of each lane and priority ``jobs_max`` due jobs are counted at most, and as many of
        the others."""
        ...


class OwnerQueries(Protocol):
    """For an owner whose jobs wait too long."""

    async def other_owners(self, agent_id: bytes, lane: str, priority: int, handlers: Sequence[str]) -> frozenset[str]:
        """Those of the handlers that another living agent has which owns an ACTIVE bucket of the lane and priority."""
        ...


# ------------------------------------------------------------ consumers of several parts


class EvacuationMaster(Protocol):
    """For the evacuation of one bucket."""

    @property
    def rescue(self) -> EvacuationRescue: ...

    @property
    def outcomes(self) -> RecoveryOutcomes: ...

    @property
    def buckets(self) -> MoveBuckets: ...


class RescuerMaster(EvacuationMaster, Protocol):
    """For rescuers, which take lost buckets."""

    @property
    def rescue(self) -> Rescue: ...

    @property
    def queries(self) -> ListBuckets: ...


class ShutdownMaster(Protocol):
    """For the graceful shutdown of buckets."""

    @property
    def buckets(self) -> MoveBuckets: ...

    @property
    def onboarding(self) -> ShutdownOnboarding: ...


class ProvisionerMaster(Protocol):
    """For the bucket provisioner."""

    @property
    def buckets(self) -> ProvisionerBuckets: ...

    @property
    def unserved(self) -> ProvisionerUnserved: ...


class MaintenanceMaster(Protocol):
    """For maintenance tasks."""

    @property
    def maintenance(self) -> Maintenance: ...

    @property
    def buckets(self) -> MaintenanceBuckets: ...

    @property
    def queries(self) -> ListBuckets: ...

    @property
    def signals(self) -> MaintenanceSignals: ...


class ConnectorMaster(Protocol):
    """For the connection to agent stores."""

    cluster: ClusterRow

    @property
    def stores(self) -> Stores: ...


class WorkerMaster(Protocol):
    """For an agent's work on its buckets."""

    @property
    def job_logs(self) -> KeptJobLogs: ...

    @property
    def limits(self) -> LimitedStarts: ...

    @property
    def outcomes(self) -> Outcomes: ...

    @property
    def onboarding(self) -> Onboarding: ...

    @property
    def buckets(self) -> MoveBuckets: ...
