"""The product's adapters on simulated servers whose calls have no faults, for a comparison with the real servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jobmaster.agentstore.fences import Fences
from jobmaster.model.cluster import ClusterRow
from tests.simulation.checks.audit import Audit
from tests.simulation.checks.trace import Trace
from tests.simulation.master.cluster_statements import ClusterStatements
from tests.simulation.master.sim_master import MasterServer, SimMaster
from tests.simulation.runtime.event_loop import SimLoop
from tests.simulation.store.sim_store import SimStore, StoreServer


class DirectNetwork:
    """Executes every call at once."""

    async def call(
        self,
        what: str,
        effect: Callable[[], Any],
        *,
        writes: bool,
        ids: Sequence[bytes] = (),
        sees: Callable[[], None] | None = None,
    ) -> Any:
        if sees is not None:
            sees()
        return effect()


class PermissiveAudit(Audit):
    """An audit without violations: a comparison also makes calls that the protocol forbids."""

    def broken(self, rule: str, what: str) -> None:
        return None


class DirectStore(SimStore):
    """A process's view of a simulated store, on a direct network."""

    def __init__(self, server: StoreServer, cluster: str, generation: bytes) -> None:
        network: Any = DirectNetwork()
        super().__init__(server, network, None)  # type: ignore[arg-type]  # calls on a direct network have no faults
        self._fences = Fences()
        self._fences.generation = generation


class DirectMaster(SimMaster):
    """A simulated master on a direct network."""

    def __init__(self, server: MasterServer) -> None:
        network: Any = DirectNetwork()
        super().__init__(server, network)
        self.cluster = ClusterRow("test", b"u" * 16)


def master_server(clock_us: Callable[[], int]) -> MasterServer:
    """A simulated master with empty tables."""
    loop: Any = SimLoop.__new__(SimLoop)  # type: ignore[type-abstract]  # only its time is read
    loop.now = 0.0
    audit = PermissiveAudit(loop, Trace())
    return MasterServer("master", loop, ClusterStatements(clock_us, audit))


def store_server(clock_us: Callable[[], int]) -> StoreServer:
    """An empty simulated store."""
    loop: Any = None
    return StoreServer("default", loop, clock_us, lambda _: None)
