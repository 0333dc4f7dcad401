"""Both sides of a comparison: the product's adapter on the real server, and the same adapter on the simulated one, where a
call is a call and nothing happens to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jobmaster.agentstore.fences import Fences
from jobmaster.model.cluster import ClusterRow
from tests.simulation.audit import Audit
from tests.simulation.loop import SimLoop
from tests.simulation.sim_master import MasterServer, SimMaster
from tests.simulation.sim_store import SimStore, StoreServer
from tests.simulation.statements_cluster import ClusterStatements
from tests.simulation.trace import Trace


class DirectWire:
    """Does at once what is asked."""

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


class Unwatched(Audit):
    """An audit that lets everything pass: what is compared here is not lawful on purpose."""

    def broken(self, rule: str, what: str) -> None:
        return None


class PlainStore(SimStore):
    """A process's view of a simulated store, on a direct wire."""

    def __init__(self, server: StoreServer, cluster: str, generation: bytes) -> None:
        wire: Any = DirectWire()
        super().__init__(server, wire, None)  # type: ignore[arg-type]  # nothing disturbs a direct wire
        self._fences = Fences()
        self._fences.generation = generation


class PlainMaster(SimMaster):
    """A simulated master on a direct wire."""

    def __init__(self, server: MasterServer) -> None:
        wire: Any = DirectWire()
        super().__init__(server, wire)
        self.cluster = ClusterRow("test", b"u" * 16)


def master_server(clock_us: Callable[[], int]) -> MasterServer:
    """A simulated master with empty tables."""
    loop: Any = SimLoop.__new__(SimLoop)  # type: ignore[type-abstract]  # only its time is read
    loop.now = 0.0
    audit = Unwatched(loop, Trace())
    return MasterServer("master", loop, ClusterStatements(clock_us, audit))


def store_server(clock_us: Callable[[], int]) -> StoreServer:
    """An empty simulated store."""
    loop: Any = None
    return StoreServer("default", loop, clock_us, lambda _: None)
