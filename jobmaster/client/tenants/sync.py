"""``SyncCluster.tenants``: the same for code without an event loop."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from jobmaster.model.flow.tenant import TenantView

if TYPE_CHECKING:
    from jobmaster.client.sync import SyncCluster


class SyncTenants:
    """The tenants of a cluster. Made by ``SyncCluster``."""

    def __init__(self, cluster: SyncCluster) -> None:
        self._cluster = cluster

    def list(self, *, lane: str | None = None, limit: int = 1000) -> builtins.list[TenantView]:
        """See ``Tenants.list``."""
        return self._cluster._call(lambda cluster: cluster.tenants.list(lane=lane, limit=limit))
