"""The leader's search for evidence of a fault: two owners of a bucket under one epoch, a store that keeps losing buckets."""

from __future__ import annotations

from jobmaster.ports import SuspicionMaster
from jobmaster.settings.model import OnSuspicion, Safety
from jobmaster_agents.leader.maintenance_runner import MaintenanceTask
from jobmaster_agents.state.suspicions import Suspicions

LOOK_SECONDS = 30.0


class SuspicionWatch:
    """Looks for it in the history of live buckets and in the losses of stores."""

    def __init__(self, master: SuspicionMaster, safety: Safety, suspicions: Suspicions) -> None:
        self._master = master
        self._safety = safety
        self._suspicions = suspicions

    def tasks(self) -> list[MaintenanceTask]:
        """The task of this class; none when suspicions are ignored."""
        if self._safety.on_suspicion is OnSuspicion.IGNORE:
            return []
        return [MaintenanceTask("suspicion", LOOK_SECONDS, self.look)]

    async def look(self) -> None:
        """Act on everything that is suspicious now."""
        for found in await self._master.maintenance.suspicious(self._safety.store_losses):
            await self._suspicions.raise_suspicion(found.kind, found.subject, found.buckets, found.detail)
