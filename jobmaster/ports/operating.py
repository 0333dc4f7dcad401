"""Ports of what operators do to agents and buckets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jobmaster.model.bucket import Bucket
from jobmaster.ports.store_answers import ReplyStatus
from jobmaster.ports.uniqueness import UniqueKeys


class OperatedAgents(Protocol):
    """Agents, as far as operators end them."""

    async def request_drain(self, agent_id: bytes, actor: str) -> bool:
        """Request a graceful exit; the agent reads it with its next renewal. False when it has ended."""
        ...


class OperatedBuckets(Protocol):
    """Buckets, as far as operators stop them."""

    async def freeze(
        self, bucket_ids: Sequence[bytes] | None, lane: str | None, actor: str, reason: str
    ) -> list[Bucket]:
        """ACTIVE -> FROZEN: the buckets that this call froze. ``None``: all of them, every lane."""
        ...

    async def unfreeze(
        self, bucket_ids: Sequence[bytes] | None, lane: str | None, actor: str, reason: str
    ) -> list[Bucket]:
        """FROZEN -> ACTIVE under the next epoch. Arguments as for ``freeze``."""
        ...


class OperatingMaster(Protocol):
    """The master, as far as operators change agents and buckets."""

    @property
    def members(self) -> OperatedAgents: ...

    @property
    def buckets(self) -> OperatedBuckets: ...

    @property
    def uniqueness(self) -> UniqueKeys: ...


class OperatingStore(Protocol):
    """An agent store, as far as operators stop buckets in it."""

    async def freeze(self, bucket_id: bytes, epoch: int, owner: bytes) -> ReplyStatus:
        """A freeze, put where producers and the owner read it at once."""
        ...
