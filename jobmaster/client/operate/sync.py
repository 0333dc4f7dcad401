"""``SyncCluster.operate``: the same for code without an event loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from jobmaster.client.operate.operating import NO_REASON, Frozen

if TYPE_CHECKING:
    from jobmaster.client.sync import SyncCluster


class SyncOperating:
    """What operators do to agents and buckets. Made by ``SyncCluster``."""

    def __init__(self, cluster: SyncCluster) -> None:
        self._cluster = cluster

    def drain(self, agent: UUID | str, *, actor: str = "client") -> None:
        """See ``Operating.drain``."""
        self._cluster._call(lambda cluster: cluster.operate.drain(agent, actor=actor))

    def freeze(
        self,
        buckets: Sequence[UUID | str] | None = None,
        *,
        lane: str | None = None,
        every: bool = False,
        reason: str = NO_REASON,
        actor: str = "client",
    ) -> Frozen:
        """See ``Operating.freeze``."""
        return self._cluster._call(
            lambda cluster: cluster.operate.freeze(buckets, lane=lane, every=every, reason=reason, actor=actor)
        )

    def unfreeze(
        self,
        buckets: Sequence[UUID | str] | None = None,
        *,
        lane: str | None = None,
        every: bool = False,
        reason: str = NO_REASON,
        actor: str = "client",
    ) -> Frozen:
        """See ``Operating.unfreeze``."""
        return self._cluster._call(
            lambda cluster: cluster.operate.unfreeze(buckets, lane=lane, every=every, reason=reason, actor=actor)
        )

    def release_unique_key(self, handler: str, key: str, *, actor: str = "client") -> None:
        """See ``Operating.release_unique_key``."""
        self._cluster._call(lambda cluster: cluster.operate.release_unique_key(handler, key, actor=actor))
