"""Agents, buckets, leases, certificates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from jobmaster.model.agent import Agent, HandlerSpec
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.ids import Fence


class Renewal(NamedTuple):
    """Answer of one heartbeat at the master."""

    alive: bool
    """False: the agent has a death certificate (or its row is gone). It must stop at once."""
    drain_requested: bool
    coordinator: bytes | None
    """AgentId of the present coordinator, ``None`` when nobody holds an unexpired lease."""
    lost_stores: Sequence[str]
    """Stores in which a bucket is LOST: any healthy agent that has such a store should try to rescue."""
    cancel_requested: list[bytes]
    """Ids of this agent's in-flight jobs with a cancel request."""
    frozen: Sequence[bytes] = ()
    """This agent's buckets that an operator has frozen."""
    at_work: int | None = None
    """How many ACTIVE, COMPLETING or FROZEN buckets the master ascribes to this agent; ``None``: not said."""
    epochs: int = 0
    """The sum of their epochs. Epochs only grow, so it is right for the same buckets when every epoch is."""
    agents: int = 1
    """Living agents of the cluster: with many of them each renews less often."""
    helps: frozenset[tuple[str, int]] = frozenset()
    """Lanes and priorities that nobody serves and in which this agent is asked to have a bucket."""
    now_us: int | None = None
    """The master's clock; ``None``: not said."""


class Membership(Protocol):
    """Agents, buckets, leases, certificates."""

    async def register(self, agent: Agent, lanes: Sequence[str], handlers: Sequence[HandlerSpec]) -> None:
        """Agent row with a fresh lease; publishes handler specs."""
        ...

    async def renew(self, agent_id: bytes, lease_seconds: float) -> Renewal:
        """Heartbeat; on the heartbeat's own connection, touches no job lock."""
        ...

    async def create_buckets(self, buckets: Sequence[Bucket]) -> bool:
        """New ACTIVE buckets of a living owner, in one transaction; False when the owner is not alive any more."""
        ...

    async def move_bucket(self, bucket_id: bytes, epoch: int, owner: bytes, to: BucketState, reason: str) -> bool:
        """Compare-and-set of a bucket's state by its present owner and epoch, with a ``bucket_event``. Out of
        READY_TO_DELETE no owner moves it: that is ``adopt_remains``."""
        ...

    async def adopt_remains(self, bucket: Bucket, reason: str) -> bool:
        """READY_TO_DELETE -> LOST: the housekeeper has found jobs in the keys of a retired bucket."""
        ...

    async def freeze(
        self, bucket_ids: Sequence[bytes] | None, lane: str | None, actor: str, reason: str
    ) -> list[Bucket]:
        """Operator's emergency stop: ACTIVE -> FROZEN (``None``: all of them), with a line in the operator's log."""
        ...

    async def unfreeze(
        self, bucket_ids: Sequence[bytes] | None, lane: str | None, actor: str, reason: str
    ) -> list[Bucket]:
        """FROZEN -> ACTIVE with epoch + 1; their owners take them up again with the next renewal."""
        ...

    async def owned_buckets(self, agent_id: bytes) -> list[Bucket]:
        """Every bucket that names the agent as its owner; retired ones while their tombstone stands."""
        ...

    async def end_agent(self, agent_id: bytes, *, dead: bool, reason: str) -> bool:
        """``dead``: death certificate without waiting for the lease (only who has *proof*, e.g. waitpid, or the agent
        itself may ask): agent DEAD and its buckets LOST in one transaction. Otherwise RETIRED, refused while it still
        owns a bucket that is neither READY_TO_DELETE nor LOST."""
        ...

    async def certify_dead(self, judge: bytes, limit: int) -> list[bytes]:
        """Death certificates for agents whose lease ran out, each one compare-and-set on the agent row; their buckets
        become LOST in the same transaction. Nobody is judged until the judge has held its lease for one full term and
        the server has been up as long."""
        ...

    async def take_lost(
        self, agent_id: bytes, stores: Sequence[str], floor_epochs: Mapping[bytes, int]
    ) -> Bucket | None:
        """One LOST bucket of the given stores -> DRAINING with epoch max(master, floor) + 1, owned by the agent; also
        terminates the dead owner's database backends. ``None``: nothing to do."""
        ...

    async def close_drained(self, fence: Fence, moved: int, rescued: int) -> bool:
        """DRAINING -> READY_TO_DELETE when no in-flight row names the bucket; False: sweep again."""
        ...

    async def stop_helping(self, agent_id: bytes, lane: str, priority: int) -> None:
        """The agent has had nothing to do there: it is not asked any more."""
        ...

    async def lead(self, agent_id: bytes, weight: int, lease_seconds: float) -> int | None:
        """Try to hold or keep the coordinator lease; the epoch when held, ``None`` when another holds it. A heavier
        candidate takes over at the expiry of a lighter one."""
        ...

    async def hand_over(self, agent_id: bytes, weight: int, epoch: int) -> bytes | None:
        """Give the coordinator lease to the heaviest agent that could lead, with epoch + 1; who that is, ``None`` when
        nobody is heavier than ``weight`` or the lease is not held under this epoch."""
        ...

    async def resign(self, agent_id: bytes, epoch: int) -> None:
        """Give the coordinator lease back at once."""
        ...
