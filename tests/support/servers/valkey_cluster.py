"""A Valkey Cluster: primaries with their replicas, real servers on ports of 127.0.0.1.

The nodes start with configuration files that name all of them, so the cluster is whole within a second; introduced with
``CLUSTER MEET`` they would find each other within several.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, cast

import redis

from jobmaster.embedded import ValkeyServer
from tests.support.processes import free_port
from tests.support.waiting import wait_until

SLOTS = 16384
CALM_MS, ALERT_MS = 30_000, 1_000
"""Silence after which a node takes another one for failed. On a loaded machine a node that lives is silent for a second now
and then, and the cluster would be down, or a replica would take over, in the middle of a test about something else."""


class ClusterNode:
    """One server of the cluster."""

    def __init__(self, path: Path, settings: Mapping[str, str]) -> None:
        self.port, self.bus_port = free_port(), free_port()
        self.id = secrets.token_hex(20)
        of_it = {
            "port": str(self.port),
            "cluster-enabled": "yes",
            "cluster-port": str(self.bus_port),
            "cluster-node-timeout": str(ALERT_MS),
            "repl-diskless-sync-delay": "0",
        }
        self.server = ValkeyServer(path, settings={**of_it, **settings})

    @property
    def name(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self.port}"

    def link(self) -> redis.Redis:
        """Straight to the server."""
        return redis.Redis(unix_socket_path=self.server.url.removeprefix("unix://"), socket_timeout=10)

    def ask(self, *command: object) -> Any:
        """The reply of one command."""
        with self.link() as link:
            return link.execute_command(*command)

    def info(self, section: str) -> dict[str, Any]:
        """One section of INFO."""
        with self.link() as link:
            return cast("dict[str, Any]", link.info(section))

    def replicated(self, key: bytes) -> None:
        """Returns when a replica has all that this primary has acknowledged so far.

        Args:
            key: one with a hash tag that the node serves.
        """
        tag = key[key.index(b"{") : key.index(b"}") + 1]
        with self.link() as link:
            # WAIT is about the writes of its own connection, and returns at once without any.
            link.set(b"in-step" + tag, 1)
            assert link.wait(1, 0) == 1


class ValkeyCluster:
    """Three primaries with a replica each, unless told otherwise.

    Args:
        root: where the directories of the nodes are made; a short path.
        replicas: of each primary.
        settings: of every node.
    """

    def __init__(
        self, root: Path, *, primaries: int = 3, replicas: int = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        self._path = root / f"cluster-{secrets.token_hex(4)}"
        self._settings = dict(settings or {})
        self.primaries = [self._node(f"p{number}") for number in range(primaries)]
        self.replicas = [self._node(f"r{number}") for number in range(primaries * replicas)]
        """The replica of each primary at the same place; a second one of each after all first ones."""
        self.nodes = [*self.primaries, *self.replicas]

    def _node(self, name: str) -> ClusterNode:
        return ClusterNode(self._path / name, self._settings)

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                self._introduce(node)
                node.server.spawn()
            for node in self.nodes:
                node.server.wait_ready()
            self.in_step()
            self.stay_calm()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.server.stop()
        shutil.rmtree(self._path, ignore_errors=True)

    def _introduce(self, node: ClusterNode) -> None:
        """The file with which a node of a cluster begins."""
        lines = []
        each = SLOTS // len(self.primaries)
        for number, one in enumerate(self.nodes):
            flags = "myself," if one is node else ""
            at = f"{one.id} 127.0.0.1:{one.port}@{one.bus_port}"
            if number < len(self.primaries):
                last = SLOTS - 1 if number == len(self.primaries) - 1 else (number + 1) * each - 1
                lines.append(f"{at} {flags}master - 0 0 {number + 1} connected {number * each}-{last}")
            else:
                above = number % len(self.primaries)
                lines.append(f"{at} {flags}slave {self.primaries[above].id} 0 0 {above + 1} connected")
        lines.append(f"vars currentEpoch {len(self.primaries)} lastVoteEpoch 0")
        node.server.directory.prepare()
        node.server.directory.data.mkdir(mode=0o700)
        (node.server.directory.data / "nodes.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")

    @property
    def url(self) -> str:
        """What JobMaster is given."""
        return f"redis+cluster://{','.join(node.name for node in self.primaries)}"

    def in_step(self) -> None:
        """Wait until every node says that the cluster is whole, and every replica has what its primary has."""

        def ready() -> bool:
            replications = [node.info("replication") for node in self._running]
            return self.whole() and all(
                found["role"] == "master" or found["master_link_status"] == "up" for found in replications
            )

        wait_until(ready, 30, "the nodes of the cluster to be in step")

    def be_alert(self) -> None:
        """From now on a node that is silent for a second has failed: call it before the failure."""
        self._node_timeout(ALERT_MS)

    def stay_calm(self) -> None:
        """From now on no node takes one that is slow to answer for one that has failed."""
        self._node_timeout(CALM_MS)

    def _node_timeout(self, milliseconds: int) -> None:
        for node in self._running:
            node.ask("CONFIG", "SET", "cluster-node-timeout", milliseconds)

    @property
    def _running(self) -> list[ClusterNode]:
        return [node for node in self.nodes if node.server.is_running()]

    def whole(self) -> bool:
        """True when every running node says that each slot is served, and none that a primary has failed."""
        said = [node.ask("CLUSTER", "INFO") for node in self._running]
        return all(b"cluster_state:ok" in one and b"cluster_slots_ok:16384" in one for one in said)

    def owner(self, key: bytes) -> ClusterNode:
        """The primary that serves a key at present."""
        slot = int(self._running[0].ask("CLUSTER", "KEYSLOT", key))
        for node in self._running:
            if _serves(node, slot):
                return node
        raise LookupError(f"no node serves slot {slot}")

    def present_primaries(self) -> list[ClusterNode]:
        """The nodes that are primaries now, of those that run."""
        return [node for node in self._running if node.info("replication")["role"] == "master"]

    def replica_of(self, node: ClusterNode) -> ClusterNode:
        """A replica of a primary."""
        return next(
            one for one in self.nodes if one is not node and one.info("replication").get("master_port") == node.port
        )

    def add(self) -> ClusterNode:
        """A further primary, without slots and functions."""
        node = self._node(f"p{len(self.nodes)}")
        node.server.start()
        for one in self._running:  # calm nodes tell each other of a new one slowly
            node.ask("CLUSTER", "MEET", "127.0.0.1", one.port, one.bus_port)
        self.nodes.append(node)

        def known() -> bool:
            said = [one.ask("CLUSTER", "INFO") for one in self._running]
            return self.whole() and all(b"cluster_known_nodes:%d" % len(self.nodes) in one for one in said)

        wait_until(known, 30, "the nodes to know the new one")
        self.stay_calm()
        node.id = node.ask("CLUSTER", "MYID").decode()
        return node

    def begin_moving(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        """The slot is being moved key by key from now on."""
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)

    def move_keys(self, slot: int, source: ClusterNode, target: ClusterNode, most: int = 1_000_000) -> int:
        """Move so many keys of the slot; how many there were."""
        keys = source.ask("CLUSTER", "GETKEYSINSLOT", slot, most)
        if keys:
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 10_000, "KEYS", *keys)
        return len(keys)

    def end_moving(self, slot: int, target: ClusterNode) -> None:
        """The slot belongs to the target."""
        for node in [target, *(node for node in self._running if node is not target)]:
            if node.info("replication")["role"] == "master":
                node.ask("CLUSTER", "SETSLOT", slot, "NODE", target.id)

    def move_slot(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        """As tools of Redis and Valkey before 9 do it."""
        self.begin_moving(slot, source, target)
        while self.move_keys(slot, source, target, 10):
            pass
        self.end_moving(slot, target)

    def move_slot_at_once(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        """The atomic migration of Valkey 9."""
        source.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.id)
        wait_until(lambda: _serves(target, slot), 30, "the slot to be moved")


def _serves(node: ClusterNode, slot: int) -> bool:
    # redis-py would make a mapping of the reply of CLUSTER NODES; MYSELF is one line.
    for line in node.ask("CLUSTER", "NODES").decode().splitlines():
        fields = line.split()
        if "myself" in fields[2] and "master" in fields[2]:
            ranges = [text.split("-") for text in fields[8:] if not text.startswith("[")]
            return any(int(ends[0]) <= slot <= int(ends[-1]) for ends in ranges)
    return False
