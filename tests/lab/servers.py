"""The servers of the laboratory, each on a host of its own: two stores, a primary, and its synchronous standby.

Each host has a disk of its own that forgets what was not synced, and a wall clock of its own.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path

import asyncpg
import msgspec

from jobmaster.embedded import EmbeddedError, PostgresServer, Server, ValkeyServer
from jobmaster.embedded.server import Launch
from tests.chaos.cluster.servers import ServerRole, Servers, until
from tests.lab.clocks import HostClocks
from tests.lab.disk.volatile_disk import DiskUnavailable, VolatileDisk
from tests.lab.network import Network

STORE_HOSTS = {"default": "store1", "synced": "store2"}
_PORTS = {"master": 5432, "default": 6379, "synced": 6379}
_CLIENTS = "\nhost all all 10.77.0.0/24 trust\nhost replication all 10.77.0.0/24 trust\n"
_STANDBY_SECONDS = 300.0
_DISK_MEGABYTES = {"store1": 2048, "store2": 2048, "db1": 12_288, "db2": 12_288}
_KEPT_SHARES = (0.0, 0.5, 0.9)
"""Of the pages in the cache of a drive, those that reach its image at a cut: none, or any of them in any order."""


class LabMutant(StrEnum):
    """What is left out, so that the checker has something to find."""

    DISKS_LIE = "disks_lie"
    """Each flush of a disk is answered and keeps nothing."""
    NO_FSYNC = "no_fsync"
    """PostgreSQL runs with ``fsync=off``."""


def _as_is(launch: Launch) -> Launch:
    return launch


class HostPostgres(PostgresServer):
    """A server whose start can be changed: it runs with the clocks of its host."""

    wrap: Callable[[Launch], Launch] = staticmethod(_as_is)

    def _launch(self) -> Launch:
        return self.wrap(super()._launch())


class HostValkey(ValkeyServer):
    """As `HostPostgres`."""

    wrap: Callable[[Launch], Launch] = staticmethod(_as_is)

    def _launch(self) -> Launch:
        return self.wrap(super()._launch())


class LabServers(Servers):
    """Each one listens on the address of its host; the test itself reaches it by the unix socket."""

    postgres, valkey = HostPostgres, HostValkey

    def __init__(self, root: Path, network: Network, clocks: HostClocks, mutant: LabMutant | None) -> None:
        super().__init__(root, disks=False)
        self._network = network
        self._clocks = clocks
        self._mutant = mutant
        self._disks: dict[str, VolatileDisk] = {}
        self.no_power_cuts: str | None = None
        """The reason if no disk here forgets what was not synced."""
        self.primary_host, self.standby_host = "db1", "db2"
        self.standby: ServerRole | None = None

    def start(self) -> None:
        """The disks, the stores, the primary, then the standby; from then on a commit waits for it."""
        self._make_disks()
        for name in ("master", *self.single_stores):
            role = self.roles[name] = ServerRole(name, self._on_host(name, self.host(name)), None)
            with self._network.inside(self.host(name)):
                role.server.start()
        with (self.roles["master"].server.directory.data / "pg_hba.conf").open("a") as rules:
            rules.write(_CLIENTS)
        self.sql("SELECT pg_reload_conf()")
        self.attach_standby()
        for disk in self._disks.values():
            disk.sync()  # the set-up is old when the first power is cut
            if self._mutant is LabMutant.DISKS_LIE:
                disk.lie()

    def _make_disks(self) -> None:
        try:
            for host, megabytes in _DISK_MEGABYTES.items():
                self._disks[host] = VolatileDisk(self._root / "disks" / host, self._root / host, megabytes)
        except DiskUnavailable as error:
            self.no_power_cuts = str(error)
            self._close_disks()

    def _close_disks(self) -> None:
        for disk in self._disks.values():
            disk.close()
        self._disks.clear()

    def _on_host(self, name: str, host: str) -> Server:
        """A new server on the disk and with the clocks of a host."""
        server = self._server(name, host)
        assert isinstance(server, HostPostgres | HostValkey)
        if self._clocks.unavailable is None:
            server.wrap = lambda launch: self._with_clocks(launch, host)
        return server

    def _with_clocks(self, launch: Launch, host: str) -> Launch:
        library, clock = descriptors = self._clocks.opened(host)
        variables = self._clocks.variables(f"/proc/self/fd/{library}", f"/proc/self/fd/{clock}")
        return msgspec.structs.replace(
            launch,
            argv=["env", *variables, *launch.argv],
            descriptors=[*launch.descriptors, *descriptors],
        )

    # ------------------------------------------------------------ power

    def cut_power(self, hosts: Iterable[str], rng: random.Random) -> str:
        """The disks of these hosts are gone, with what was not synced, also for what still runs there. What they lost."""
        share, found = rng.choice(_KEPT_SHARES), []
        for host in sorted(self._disks.keys() & set(hosts)):
            pages = self._disks[host].cut(rng.getrandbits(32), share)
            found.append(f"{host} kept {pages['kept']} of {pages['unsynced']} pages that were not synced")
        return ", ".join(found)

    def restore_power(self, hosts: Iterable[str]) -> None:
        """What was synced is there again; no server runs yet."""
        for host in self._disks.keys() & set(hosts):
            self._disks[host].restore()

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
        standby = self._on_host("master", self.standby_host)
        assert isinstance(standby, PostgresServer)
        with self._network.inside(self.standby_host):
            self._base_backup(primary, standby)
            if (disk := self._disks.get(self.standby_host)) is not None:
                disk.sync()  # the copy was made without
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
        self._close_disks()

    def _discard(self, role: ServerRole) -> None:
        with contextlib.suppress(EmbeddedError):
            role.server.stop()
        shutil.rmtree(role.server.directory.path, ignore_errors=True)

    def _port(self, name: str) -> int:
        return _PORTS[name]

    def _listening(self, name: str) -> dict[str, str]:
        if name != "master":
            return {"bind": "0.0.0.0", "protected-mode": "no"}
        return {"listen_addresses": "*", **({"fsync": "off"} if self._mutant is LabMutant.NO_FSYNC else {})}

    def _conninfo(self, primary: PostgresServer) -> str:
        return f"host={self._network.address(self.primary_host)} port={_PORTS['master']} user=jobmaster"


def may_promote(servers: LabServers) -> bool:
    """Whether the standby has every acknowledged commit at this moment."""
    try:
        return servers.standby is not None and servers.in_step()
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, EmbeddedError):
        return False
