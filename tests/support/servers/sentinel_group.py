"""A primary, a replica and the Sentinels that watch them: real servers on ports of 127.0.0.1."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Self, cast

import msgspec
import redis

from jobmaster.embedded import ValkeyServer
from jobmaster.embedded.server import Launch
from tests.support.processes import free_port
from tests.support.waiting import wait_until

GROUP = "jobs"
CALM_MS, ALERT_MS = 60_000, 500
"""Silence after which a Sentinel takes a server for one that is down. On a loaded machine a server that lives is silent for
half a second now and then, and a replica would be promoted before the test has begun."""


class _Sentinel(ValkeyServer):
    """The same program as a Sentinel."""

    def _launch(self) -> Launch:
        launch = super()._launch()
        return msgspec.structs.replace(launch, argv=[*launch.argv, "--sentinel"])


class SentinelGroup:
    """Two servers and their Sentinels.

    Args:
        root: where their directories are made; a short path.
        sentinels: how many; more than half of them have to agree.
        settings: of both servers.
        password: what the Sentinels ask for.
    """

    def __init__(
        self, root: Path, *, sentinels: int = 3, settings: Mapping[str, str] | None = None, password: str | None = None
    ) -> None:
        self.password = password
        self._path = root / f"sentinel-{secrets.token_hex(4)}"
        ports = [free_port() for _ in range(2)]
        # Without the delay a replica that comes late would be in step after five seconds.
        common = {"repl-diskless-sync-delay": "0", **(settings or {})}
        self.primary = self._server("a", {**common, "port": str(ports[0])})
        self.replica = self._server("b", {**common, "port": str(ports[1]), "replicaof": f"127.0.0.1 {ports[0]}"})
        self.ports = ports
        self.sentinel_ports = [free_port() for _ in range(sentinels)]
        names = [secrets.token_hex(20) for _ in range(sentinels)]
        self.sentinels = []
        for number, port in enumerate(self.sentinel_ports):
            directives = [
                f"myid {names[number]}",
                f"monitor {GROUP} 127.0.0.1 {ports[0]} {sentinels // 2 + 1}",
                f"down-after-milliseconds {GROUP} {CALM_MS}",
                f"failover-timeout {GROUP} 3000",
                # Known from the beginning: they would find each other within some seconds.
                f"known-replica {GROUP} 127.0.0.1 {ports[1]}",
                *(
                    f"known-sentinel {GROUP} 127.0.0.1 {other} {name}"
                    for other, name in zip(self.sentinel_ports, names, strict=True)
                    if other != port
                ),
            ]
            of_it = {"port": str(port), "sentinel": "\nsentinel ".join(directives)}
            if password is not None:
                of_it["requirepass"] = password
            self.sentinels.append(_Sentinel(self._path / f"s{number}", settings=of_it))

    def _server(self, name: str, settings: Mapping[str, str]) -> ValkeyServer:
        return ValkeyServer(self._path / name, settings=settings)

    def __enter__(self) -> Self:
        try:
            for server in (self.primary, self.replica, *self.sentinels):
                server.start()
            self.in_step()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for server in (*self.sentinels, self.replica, self.primary):
            server.stop()
        shutil.rmtree(self._path)

    @property
    def url(self) -> str:
        """What JobMaster is given."""
        login = f"?sentinel_password={self.password}" if self.password else ""
        return f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in self.sentinel_ports)}/{GROUP}/0{login}"

    def in_step(self) -> None:
        """Wait until the replica has what the primary has, and a Sentinel knows both."""

        def ready() -> bool:
            with redis.Redis.from_url(self.replica.url) as link:
                replication = cast("dict[str, str]", link.info("replication"))
            return self.replica_is_known() and replication.get("master_link_status") == "up"

        wait_until(ready, 20, "the replica to be in step")

    def replica_is_known(self) -> bool:
        """True once a Sentinel sees a replica in step, which it could promote."""
        with self._asked() as link:
            known = cast("list[dict[bytes, bytes]]", link.execute_command("SENTINEL", "REPLICAS", GROUP))
        return any(replica.get(b"master-link-status") == b"ok" for replica in known)

    def named_port(self) -> int:
        """The port of the primary, as the first Sentinel names it."""
        with self._asked() as link:
            return int(link.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", GROUP)[1])

    def promoted(self) -> bool:
        """True once the replica is the primary, and is named so."""
        return self.named_port() == self.ports[1] and _role(self.replica) == "master"

    def demoted(self) -> bool:
        """True once the former primary is a replica."""
        return _role(self.primary) == "slave"

    def be_alert(self, milliseconds: int = ALERT_MS) -> None:
        """From now on the Sentinels promote the replica when the primary is silent for so long: call it before the failure.

        They promote no replica whose link was down for more than ten times that when they saw the failure.
        """
        self._down_after(milliseconds)

    def stay_calm(self) -> None:
        """From now on no Sentinel takes a server that is slow to answer for one that is down.

        A Sentinel makes a former primary a replica only when no server has been down for eight seconds. On a loaded machine
        a server misses half a second more often than that, and the former primary would stay one for ever.
        """
        self._down_after(CALM_MS)

    def _down_after(self, milliseconds: int) -> None:
        for port in self.sentinel_ports:
            with redis.Redis(port=port, password=self.password) as link:
                link.execute_command("SENTINEL", "SET", GROUP, "down-after-milliseconds", milliseconds)

    def replicated(self) -> None:
        """Returns when the replica has all that the primary has acknowledged so far."""
        with redis.Redis.from_url(self.primary.url) as link:
            link.set("in-step", 1)  # WAIT is about the writes of its own connection, and returns at once without any
            assert link.wait(1, 0) == 1

    def cut_replica_off(self) -> None:
        """From now on the replica gets nothing from the primary, whose login it fails.

        It still names its primary: a replica of another server would be given the right one again within seconds.
        """
        with redis.Redis.from_url(self.replica.url) as link:
            link.config_set("masterauth", "wrong")
            link.execute_command("CLIENT", "KILL", "TYPE", "MASTER")

            def cut_off() -> bool:
                return cast("dict[str, str]", link.info("replication")).get("master_link_status") == "down"

            wait_until(cut_off, 20, "the replica to lose its primary")

    def _asked(self) -> redis.Redis:
        return redis.Redis(port=self.sentinel_ports[0], password=self.password)


def _role(server: ValkeyServer) -> str | None:
    """What the server is now; ``None`` while a Sentinel changes it, which ends the connections of its clients."""
    try:
        with redis.Redis.from_url(server.url) as link:
            return cast("dict[str, str]", link.info("replication")).get("role")
    except redis.exceptions.ConnectionError:
        return None
