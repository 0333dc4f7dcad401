"""``SyncCluster.breakers``: the same for code without an event loop."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from jobmaster.client.breakers.breakers import ACTOR
from jobmaster.model.flow.breaker import BreakerView

if TYPE_CHECKING:
    from jobmaster.client.sync import SyncCluster


class SyncBreakers:
    """The circuit breakers of a cluster. Made by ``SyncCluster``."""

    def __init__(self, cluster: SyncCluster) -> None:
        self._cluster = cluster

    def list(self) -> list[BreakerView]:
        """See ``Breakers.list``."""
        return self._cluster._call(lambda cluster: cluster.breakers.list())

    def get(self, resource: str) -> BreakerView:
        """See ``Breakers.get``."""
        return self._cluster._call(lambda cluster: cluster.breakers.get(resource))

    def open(
        self,
        resource: str,
        *,
        open_for: float | timedelta | None = None,
        reason: str = "",
        actor: str = ACTOR,
        epoch: int | None = None,
    ) -> BreakerView:
        """See ``Breakers.open``."""
        return self._cluster._call(
            lambda cluster: cluster.breakers.open(resource, open_for=open_for, reason=reason, actor=actor, epoch=epoch)
        )

    def close(self, resource: str, *, reason: str = "", actor: str = ACTOR, epoch: int | None = None) -> BreakerView:
        """See ``Breakers.close``."""
        return self._cluster._call(
            lambda cluster: cluster.breakers.close(resource, reason=reason, actor=actor, epoch=epoch)
        )
