"""The servers of the laboratory, each on a host of its own: two stores, a primary, and its synchronous standby."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import asyncpg

from jobmaster.embedded import EmbeddedError, PostgresServer
from tests.chaos.cluster.servers import ServerRole, Servers, until
from tests.lab.network import Network

STORE_HOSTS = {"default": "store1", "synced": "store2"}
_PORTS = {"master": 5432, "default": 6379, "synced": 6379}
_CLIENTS = "\nhost all all 10.77.0.0/24 trust\nhost replication all 10.77.0.0/24 trust\n"
_STANDBY_SECONDS = 120.0


class LabServers(Servers):
    """Each one listens on the address of its host; the test itself reaches it by the unix socket."""

    def __init__(self, root: Path, network: Network) -> None:
        super().__init__(root, disks=False)
        self._network = network
        self.primary_host, self.standby_host = "db1", "db2"
        self.standby: ServerRole | None = None

    def start(self) -> None:
        """The stores, the primary, then the standby; from then on a commit waits for it."""
        for name in ("master", *self.single_stores):
            role = self.roles[name] = ServerRole(name, self._server(name), None)
            with self._network.inside(self.host(name)):
                role.server.start()
        with (self.roles["master"].server.directory.data / "pg_hba.conf").open("a") as rules:
            rules.write(_CLIENTS)
        self.sql("SELECT pg_reload_conf()")
        self.attach_standby()

    def host(self, name: str) -> str:
        """The host of a server."""
        return self.primary_host if name == "master" else STORE_HOSTS[name]

    def up(self, name: str) -> None:
        """Start a server again, on its host."""
        with self._network.inside(self.host(name)):
            self.roles[name].up()

    def attach_standby(self) -> None:
        """A new standby, synchronous as soon as it streams."""
        primary = self.roles["master"].server
        assert isinstance(primary, PostgresServer)
        standby = self._server("master")
        assert isinstance(standby, PostgresServer)
        with self._network.inside(self.standby_host):
            self._base_backup(primary, standby)
            standby.start()
        self.standby = ServerRole("standby", standby, None)
        self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        until(self.in_step, "the standby to be synchronous", _STANDBY_SECONDS)

    def in_step(self) -> bool:
        """Whether the standby streams and each commit waits for it: it has every acknowledged one."""
        return bool(
            self.sql(
                "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state IN ('sync', 'quorum')",
                seconds=5,
            )[0][0]
        )

    def promote(self) -> None:
        """The host of the primary is gone; the standby becomes the master."""
        assert self.standby is not None
        self._discard(self.roles["master"])
        self.roles["master"], self.standby = ServerRole("master", self.standby.server, None), None
        self.primary_host, self.standby_host = self.standby_host, self.primary_host
        self.sql("SELECT pg_promote()")
        until(lambda: not self.sql("SELECT pg_is_in_recovery()")[0][0], "the standby to be promoted", _STANDBY_SECONDS)

    def restart_standby(self) -> None:
        """After its host vanished and came back, with its data."""
        assert self.standby is not None
        with self._network.inside(self.standby_host):
            self.standby.up()
        until(self.in_step, "the standby to stream again", _STANDBY_SECONDS)

    def close(self) -> None:
        if self.standby is not None:
            with contextlib.suppress(EmbeddedError):
                self.standby.server.stop()
        super().close()

    def _discard(self, role: ServerRole) -> None:
        with contextlib.suppress(EmbeddedError):
            role.server.stop()
        shutil.rmtree(role.server.directory.path, ignore_errors=True)

    def _port(self, name: str) -> int:
        return _PORTS[name]

    def _listening(self, name: str) -> dict[str, str]:
        return {"listen_addresses": "*"} if name == "master" else {"bind": "0.0.0.0", "protected-mode": "no"}

    def _conninfo(self, primary: PostgresServer) -> str:
        return f"host={self._network.address(self.primary_host)} port={_PORTS['master']} user=jobmaster"


def may_promote(servers: LabServers) -> bool:
    """Whether the standby has every acknowledged commit at this moment."""
    try:
        return servers.standby is not None and servers.in_step()
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, EmbeddedError):
        return False
