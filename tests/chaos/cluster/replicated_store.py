"""A store of several servers for a run: a primary and a replica that Sentinels watch, or a Valkey Cluster.

Its clients find the servers by what these announce, so it has no proxy before it; the faults of its servers are of their own.
"""

from __future__ import annotations

import random
from enum import StrEnum
from pathlib import Path

import redis
from redis.crc import key_slot

from jobmaster.embedded import ValkeyServer
from tests.support.servers.sentinel_group import GROUP, SentinelGroup
from tests.support.servers.valkey_cluster import ClusterNode, ValkeyCluster
from tests.support.waiting import wait_until

UP_SECONDS = 60.0


class StoreForm(StrEnum):
    """What the store ``default`` of a run is."""

    SINGLE = "single"
    """One server behind the proxy."""
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


class WatchedStore:
    """A primary and a replica that three Sentinels watch."""

    def __init__(self, root: Path) -> None:
        self._group = SentinelGroup(root)
        self.url = self._group.url
        self._wanted = self._group.ports[0]
        """The port of the server that is the primary, or has to become it."""

    def start(self) -> None:
        self._group.__enter__()

    def close(self) -> None:
        self._group.__exit__()

    def clients(self) -> list[redis.Redis]:
        """Straight to the primary."""
        return [redis.Redis(port=self._group.named_port(), socket_timeout=10)]

    def _other(self) -> int:
        first, second = self._group.ports
        return second if self._wanted == first else first

    def kill_primary(self, rng: random.Random) -> str:
        """SIGKILL; the name of the server."""
        name = f"the primary on port {self._wanted}"
        self._server(self._wanted).kill()
        self._wanted = self._other()
        return name

    def command_failover(self, rng: random.Random) -> str:
        """Primary and replica are exchanged; the name of the primary."""
        name = f"the primary on port {self._wanted}"
        with redis.Redis(port=self._group.sentinel_ports[0]) as sentinel:
            sentinel.execute_command("SENTINEL", "FAILOVER", GROUP)
        self._wanted = self._other()
        return name

    def mend(self) -> None:
        wait_until(
            lambda: self._role(self._wanted) == ("master", None), UP_SECONDS, "the Sentinels to promote a replica"
        )
        self._server(self._other()).start()
        wait_until(lambda: self._role(self._other()) == ("slave", "up"), UP_SECONDS, "the former primary to follow")
        wait_until(self._group.replica_is_known, UP_SECONDS, "a Sentinel to know the replica")

    def _server(self, port: int) -> ValkeyServer:
        return self._group.primary if port == self._group.ports[0] else self._group.replica

    def _role(self, port: int) -> tuple[str, str | None]:
        """Role, and state of the link of a replica."""
        with redis.Redis(port=port, socket_timeout=10) as link:
            found = link.info("replication")
        return found["role"], found.get("master_link_status")


class ClusterStore:
    """Three primaries with a replica each."""

    def __init__(self, root: Path) -> None:
        self._nodes = ValkeyCluster(root)
        self.url = self._nodes.url
        self._killed: ClusterNode | None = None
        self._promoted: ClusterNode | None = None
        self._moves = 0

    def start(self) -> None:
        self._nodes.__enter__()

    def close(self) -> None:
        self._nodes.__exit__()

    def clients(self) -> list[redis.Redis]:
        """Straight to each primary."""
        return [node.link() for node in self._nodes.present_primaries()]

    def kill_primary(self, rng: random.Random) -> str:
        """SIGKILL; the name of the node."""
        node = rng.choice(self._nodes.present_primaries())
        node.server.kill()
        self._killed = node
        return f"the primary {node.name}"

    def command_failover(self, rng: random.Random) -> str:
        """A replica is told to take over; the name of its primary."""
        node = rng.choice(self._nodes.present_primaries())
        self._promoted = self._nodes.replica_of(node)
        self._promoted.ask("CLUSTER", "FAILOVER")
        return f"the primary {node.name}"

    def move_slots(self, rng: random.Random) -> str:
        """The slots of all buckets of one primary go to another one, one by one and in both ways; their number."""
        source, target = rng.sample(self._nodes.present_primaries(), 2)
        slots = sorted({key_slot(meta) for meta in source.ask("KEYS", "jm:*:meta")})
        for slot in slots:
            self._moves += 1
            move = self._nodes.move_slot if self._moves % 2 else self._nodes.move_slot_at_once
            move(slot, source, target)
        return f"{len(slots)} slots from {source.name} to {target.name}" if slots else ""

    def mend(self) -> None:
        """Wait until each slot has a primary, start the node that was killed, and wait until all are in step."""
        promoted, self._promoted = self._promoted, None
        if promoted is not None:
            wait_until(lambda: promoted in self._nodes.present_primaries(), UP_SECONDS, "the replica to take over")
        wait_until(self._nodes.whole, UP_SECONDS, "a replica to take over")
        if self._killed is not None:
            self._killed.server.start()
            self._killed = None
        self._nodes.in_step()


def replicated_store(form: StoreForm, root: Path) -> WatchedStore | ClusterStore | None:
    """The store of a form; ``None`` for one server."""
    match form:
        case StoreForm.SINGLE:
            return None
        case StoreForm.SENTINEL:
            return WatchedStore(root)
        case StoreForm.CLUSTER:
            return ClusterStore(root)
