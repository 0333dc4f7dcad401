"""The cluster of `tests.chaos` on hosts of its own: no proxy between the processes, but links."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from tests.chaos.cluster.chaos_cluster import ChaosCluster
from tests.lab.faults import AGENT_HOSTS, HOSTS, PRODUCER_HOSTS, LabTargets
from tests.lab.network import Network
from tests.lab.servers import STORE_HOSTS, LabServers


class LabCluster(ChaosCluster):
    """Agents, producers and servers, each on its host."""

    network: Network

    def _make_servers(self, disks: bool, stack: ExitStack) -> LabServers:
        self.network = Network(self.root / "network", HOSTS)
        stack.callback(self.network.close)
        return LabServers(self.root, self.network)

    def _route(self, member: str) -> None:
        hosts = ",".join(f"{self.network.address(host)}:5432" for host in ("db1", "db2"))

        def address(server: str) -> str:
            if server == "master":
                return f"postgresql://jobmaster@{hosts}/jobmaster?sslmode=disable&target_session_attrs=read-write"
            return f"redis://{self.network.address(STORE_HOSTS[server])}:6379/0"

        self._settings(member, address)

    def _start_members(self) -> None:
        self.fleet.prefixes = {
            name: self.network.prefix(host) for name, host in {**AGENT_HOSTS, **PRODUCER_HOSTS}.items()
        }
        super()._start_members()

    def _targets(self) -> LabTargets:
        plain: dict[str, Any] = vars(super()._targets())
        return LabTargets(**plain, network=self.network)
