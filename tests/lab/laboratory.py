"""The cluster of `tests.chaos` on hosts of its own: no proxy between the processes, but links."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from tests.chaos.cluster.chaos_cluster import ChaosCluster, RunOptions
from tests.lab.clocks import HostClocks
from tests.lab.faults.targets import HOSTS, LabTargets, members
from tests.lab.network import Network
from tests.lab.servers import STORE_HOSTS, LabMutant, LabServers


class LabCluster(ChaosCluster):
    """Agents, producers and servers, each on its host."""

    network: Network
    clocks: HostClocks

    def __init__(self, options: RunOptions, stack: ExitStack, log_line: Any, mutant: LabMutant | None = None) -> None:
        self._mutant = mutant
        super().__init__(options, stack, log_line)

    def _make_servers(self, disks: bool, stack: ExitStack) -> LabServers:
        self.network = Network(self.root / "network", HOSTS)
        stack.callback(self.network.close)
        self.clocks = HostClocks(self.root / "clocks", HOSTS)
        return LabServers(self.root, self.network, self.clocks, self._mutant)

    def _route(self, member: str) -> None:
        hosts = ",".join(f"{self.network.address(host)}:5432" for host in ("db1", "db2"))

        def address(server: str) -> str:
            if server == "master":
                return f"postgresql://jobmaster@{hosts}/jobmaster?sslmode=disable&target_session_attrs=read-write"
            return f"redis://{self.network.address(STORE_HOSTS[server])}:6379/0"

        self._settings(member, address)

    def _start_members(self) -> None:
        targets = self._targets()
        self.fleet.prefixes = {name: targets.prefix(host) for host in HOSTS for name in members(host)}
        super()._start_members()

    def _targets(self) -> LabTargets:
        plain: dict[str, Any] = vars(super()._targets())
        return LabTargets(**plain, network=self.network, clocks=self.clocks)
