"""``SyncCluster.limits``: the same for code without an event loop."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from jobmaster.client.limits.limits import ACTOR
from jobmaster.model.flow.limit import LimitView

if TYPE_CHECKING:
    from jobmaster.client.sync import SyncCluster


class SyncLimits:
    """The limits of a cluster. Made by ``SyncCluster``."""

    def __init__(self, cluster: SyncCluster) -> None:
        self._cluster = cluster

    def set(
        self,
        name: str,
        running: int | None = None,
        *,
        rate: str | float | None = None,
        burst: float | None = None,
        reason: str = "",
        actor: str = ACTOR,
        force: bool = False,
    ) -> LimitView:
        """See ``Limits.set``."""
        return self._cluster._call(
            lambda cluster: cluster.limits.set(
                name, running, rate=rate, burst=burst, reason=reason, actor=actor, force=force
            )
        )

    def reset(self, name: str, *, actor: str = ACTOR) -> bool:
        """See ``Limits.reset``."""
        return self._cluster._call(lambda cluster: cluster.limits.reset(name, actor=actor))

    def get(self, name: str) -> LimitView:
        """See ``Limits.get``."""
        return self._cluster._call(lambda cluster: cluster.limits.get(name))

    def list(self) -> builtins.list[LimitView]:
        """See ``Limits.list``."""
        return self._cluster._call(lambda cluster: cluster.limits.list())
