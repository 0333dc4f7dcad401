"""The servers of a run: PostgreSQL, a store that syncs every second and one that always does, and their faults.

Clients reach them only through the proxy, so that after a failover the same address leads to the new server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import redis

from benchmarks.support.measured_cluster import descendants
from jobmaster.embedded import EmbeddedError, PostgresServer, Server, ValkeyServer
from tests.chaos.cluster.machine import Disk
from tests.chaos.cluster.replicated_store import StoreForm, replicated_store
from tests.support.processes import free_port
from tests.support.proxy.tcp_proxy import socket_of

STORES = {"default": "everysec", "synced": "always"}
_DISK_MEGABYTES = {"default": 1536, "synced": 1024, "master": 4096}
_UP_SECONDS = 120.0


def send(pids: list[int], signum: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


class ServerRole:
    """A server and its successors under one name: a failover replaces the server, and the name stays."""

    def __init__(self, name: str, server: Server, disk: Disk | None) -> None:
        self.name = name
        self.server = server
        self.disk = disk
        self.frozen: list[int] = []

    @property
    def upstream(self) -> str:
        """Path of the unix socket."""
        return socket_of(self.server.address)

    @property
    def pids(self) -> list[int]:
        pid = self.server.pid
        return descendants(pid) if pid else []

    def freeze(self) -> None:
        """SIGSTOP to the server with all its processes."""
        self.frozen = self.pids
        send(self.frozen, signal.SIGSTOP)

    def unfreeze(self) -> None:
        send(self.frozen, signal.SIGCONT)
        self.frozen = []

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        with contextlib.suppress(EmbeddedError):
            self.server.kill()

    def quit_immediately(self) -> None:
        """PostgreSQL's immediate shutdown: no checkpoint, recovery at the next start."""
        pid = self.server.pid
        if pid:
            os.kill(pid, signal.SIGQUIT)
        end = time.monotonic() + _UP_SECONDS
        while self.server.is_running() and time.monotonic() < end:
            time.sleep(0.02)

    def up(self) -> None:
        """Start it if it does not run (it may have ended by itself, on a full disk for example)."""
        end = time.monotonic() + _UP_SECONDS
        while not self.server.is_running():
            try:
                self.server.start()
            except EmbeddedError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)


class Servers:
    """All of them, below one short directory.

    Args:
        form: of the store ``default``; the other one is a single server always.
    """

    postgres: type[PostgresServer] = PostgresServer
    valkey: type[ValkeyServer] = ValkeyServer

    def __init__(self, root: Path, disks: bool, form: StoreForm = StoreForm.SINGLE) -> None:
        self._root = root
        self.replicated = replicated_store(form, root)
        self.single_stores = [name for name in STORES if self.replicated is None or name != "default"]
        """Stores of one server, with a role."""
        self.no_disks: str | None = None if disks else "not asked for"
        self._generation = 0
        self.roles: dict[str, ServerRole] = {}

    def start(self) -> None:
        """File systems of their own where that is possible, then the servers."""
        for name in ("master", *self.single_stores):
            disk = self._disk(name) if self.no_disks is None else None
            self.roles[name] = ServerRole(name, self._server(name), disk)
            self.roles[name].server.start()
        if self.replicated is not None:
            self.replicated.start()

    def _disk(self, name: str) -> Disk | None:
        disk = Disk(self._root / f"{name}.img", self._root / name, _DISK_MEGABYTES[name])
        self.no_disks = disk.make()
        return disk if self.no_disks is None else None

    def _server(self, name: str, folder: str = "") -> Server:
        """A new server; its data are in a folder of the run: that of its name, or another one."""
        self._generation += 1
        path = self._root / (folder or name) / str(self._generation)
        path.parent.mkdir(exist_ok=True)
        if name == "master":
            settings = {
                "shared_buffers": "256MB",
                "max_wal_size": "2GB",
                "wal_level": "replica",
                "max_connections": "160",
            }
            return self.postgres(path, port=self._port(name), settings={**settings, **self._listening(name)})
        # Without a password: it would be another one after a failover, and only this machine can connect.
        settings = {"appendfsync": STORES[name], "port": str(self._port(name)), **self._listening(name)}
        return self.valkey(path, settings=settings)

    def _port(self, name: str) -> int:
        return free_port()

    def _listening(self, name: str) -> dict[str, str]:
        """Further settings of a server: the addresses that it listens on. Without any: the loopback."""
        return {}

    # ------------------------------------------------------------ stores

    def clients(self, name: str) -> list[redis.Redis]:
        """Straight to each server of a store that has keys."""
        return [self.client(name)] if name in self.roles or self.replicated is None else self.replicated.clients()

    def client(self, name: str) -> redis.Redis:
        """Straight to a store of one server."""
        return redis.Redis(unix_socket_path=self.roles[name].upstream, socket_timeout=10)

    def truncate_log(self, name: str, share: float) -> int:
        """Cut off the tail of the newest append-only file (the store must be down); how many bytes."""
        data = self.roles[name].server.directory.data / "appendonlydir"
        newest = max(data.glob("*.incr.aof"), key=lambda path: path.stat().st_mtime)
        size = newest.stat().st_size
        cut = min(int(size * share), 400_000)
        os.truncate(newest, size - cut)
        return cut

    def fail_over_store(self, name: str, lag_seconds: float) -> None:
        """A replica that lags becomes the store: it follows no more, and after a while its primary is killed.

        A replica that is stopped with SIGSTOP does not lag: what the primary has sent lies in the buffers of its socket,
        and it reads all of it when it goes on.
        """
        role = self.roles[name]
        old = role.server
        assert isinstance(old, ValkeyServer)
        with self.client(name) as link:
            port = link.config_get("port")["port"]
        replica = self._server(name)
        assert isinstance(replica, ValkeyServer)
        # The embedded server has no words for replicas, and needs none.
        replica._settings |= {"replicaof": f"127.0.0.1 {port}"}
        replica.start()
        fresh = ServerRole(name, replica, role.disk)
        with redis.Redis(unix_socket_path=fresh.upstream) as link:
            until(lambda: link.info("replication").get("master_link_status") == "up", "the replica to be in step")
            link.execute_command("REPLICAOF", "NO", "ONE")
            time.sleep(lag_seconds)
            old.kill()
        del replica._settings["replicaof"]  # from its next start on it is no replica
        self.roles[name] = fresh
        shutil.rmtree(old.directory.path, ignore_errors=True)

    # ------------------------------------------------------------ the master

    def sql(self, *statements: str, schema: str | None = None, seconds: float = 120.0) -> list[Any]:
        """Straight to the master; the rows of the last statement."""

        async def run() -> list[Any]:
            settings = {"search_path": f'"{schema}"'} if schema else {}
            connection = await asyncpg.connect(
                self.roles["master"].server.address, server_settings=settings, timeout=min(seconds, 20.0)
            )
            try:
                for statement in statements[:-1]:
                    await connection.execute(statement)
                return list(await connection.fetch(statements[-1], timeout=seconds))
            finally:
                connection.terminate()

        return asyncio.run(run())

    def fail_over_master(self) -> None:
        """A synchronous standby is attached, the primary is killed, the standby becomes the master."""
        role = self.roles["master"]
        old = role.server
        assert isinstance(old, PostgresServer)
        standby = self._server("master")
        assert isinstance(standby, PostgresServer)
        self._base_backup(old, standby)
        standby.start()
        until(
            lambda: self.sql("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'")[0][0] == 1,
            "the standby to stream",
        )
        self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        until(
            lambda: (
                self.sql("SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')")[0][0] == 1
            ),
            "the standby to be synchronous",
        )
        time.sleep(1.0)
        old.kill()
        self.roles["master"] = ServerRole("master", standby, role.disk)
        self.sql("SELECT pg_promote()")
        until(lambda: not self.sql("SELECT pg_is_in_recovery()")[0][0], "the standby to be promoted")
        shutil.rmtree(old.directory.path, ignore_errors=True)

    def no_standby(self) -> str | None:
        """The reason if no standby can be made here."""
        server = self.roles["master"].server
        assert isinstance(server, PostgresServer)
        program = server.program.path / "pg_basebackup"
        return None if program.exists() else f"no {program}"

    def _base_backup(self, primary: PostgresServer, standby: PostgresServer) -> None:
        standby.directory.prepare()
        data = standby.directory.data
        conninfo = self._conninfo(primary)
        command = [str(primary.program.path / "pg_basebackup"), "-D", str(data), "-d", conninfo, "-R", "-X", "stream"]
        subprocess.run([*command, "--checkpoint=fast", "--no-sync"], check=True, capture_output=True, timeout=600)
        for copied in data.glob(".s.PGSQL.*"):
            copied.unlink()  # the primary's socket: on another host the standby has the same port
        shutil.copy(primary.directory.path / "password", standby.directory.path / "password")
        (standby.directory.path / "database-created").touch()
        owner = primary.directory.data.stat()
        data.chmod(0o700)
        for folder, names, files in os.walk(data):
            for each in (".", *names, *files):
                os.chown(os.path.join(folder, each), owner.st_uid, owner.st_gid)

    def _conninfo(self, primary: PostgresServer) -> str:
        """How a standby reaches its primary."""
        login = urlsplit(primary.tcp_dsn)
        return f"host=127.0.0.1 port={login.port} user={login.username} password={login.password}"

    # ------------------------------------------------------------ all

    def close(self) -> None:
        """Everything ends, frozen or not."""
        if self.replicated is not None:
            self.replicated.close()
        for role in self.roles.values():
            if role.disk is not None:
                role.disk.wait()
            role.unfreeze()
        for role in self.roles.values():
            with contextlib.suppress(EmbeddedError):
                role.server.stop()
            if role.disk is not None:
                role.disk.close()


def until(condition: Any, what: str, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(redis.ConnectionError, OSError, asyncpg.PostgresError):
            if condition():
                return
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(0.05)
