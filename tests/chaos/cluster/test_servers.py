"""The faults of servers are what their names state."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path

import pytest
import redis

from tests.chaos.cluster.servers import STORES, ServerRole, Servers

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_a_store_that_has_failed_over_to_a_replica_that_lags_has_forgotten_writes(server_root: Path) -> None:
    name = next(iter(STORES))
    servers = Servers(server_root / "lagging", disks=False)
    (server_root / "lagging").mkdir()
    servers.roles[name] = ServerRole(name, servers._server(name), None)
    servers.roles[name].server.start()
    written: list[float] = []

    def write(link: redis.Redis) -> None:
        """Until its server is killed. Notes when each write was answered."""
        try:
            for number in itertools.count(1):
                link.set("number", number)
                written.append(time.monotonic())
        except redis.RedisError:
            return

    try:
        with servers.client(name) as link:
            link.set("before", 1)
            writer = threading.Thread(target=write, args=[link])
            writer.start()
            servers.fail_over_store(name, 0.3)
            writer.join()
        with servers.client(name) as link:
            assert link.get("before") == b"1"
            kept = int(link.get("number") or 0)
    finally:
        servers.roles[name].server.stop()
    assert 0 < kept < len(written)
    assert written[-1] - written[kept - 1] > 0.1, "how many writes that is depends on the load of the machine"
