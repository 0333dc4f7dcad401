"""The servers of the laboratory on their disks and with their clocks: what was promised outlives a cut of the power."""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import asyncpg
import pytest

from jobmaster.embedded import EmbeddedError
from tests.lab.clocks import HostClocks
from tests.lab.disk.volatile_disk import DiskUnavailable
from tests.lab.network import LabUnavailable, Network
from tests.lab.servers import STORE_HOSTS, LabMutant, LabServers

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

HOSTS = ("db1", "db2", "store1", "store2")
ROWS = 50
CUTS_MAX = 10
Body = Callable[[LabServers, Network, HostClocks], None]


@pytest.fixture
def on_servers(server_root: Path) -> Callable[[LabMutant | None, Body], None]:
    """Runs a test's body in a thread of its own, on servers that were just started."""
    if os.geteuid() != 0 or not sys.platform.startswith("linux"):
        pytest.skip("network namespaces and mounts need root on Linux")

    def run(mutant: LabMutant | None, body: Body) -> None:
        root = Path(tempfile.mkdtemp(dir=server_root))
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, root)
            network = Network(root / "network", HOSTS)
            stack.callback(network.close)
            clocks = HostClocks(root / "clocks", HOSTS)
            servers = LabServers(root, network, clocks, mutant)
            stack.callback(servers.close)
            servers.start()
            body(servers, network, clocks)

    def in_thread(mutant: LabMutant | None, body: Body) -> None:
        with ThreadPoolExecutor(1) as thread:
            try:
                thread.submit(run, mutant, body).result()
            except LabUnavailable as error:
                pytest.skip(str(error))

    return in_thread


def cut_all(servers: LabServers, network: Network) -> None:
    """The power of all hosts goes and comes back."""
    if servers.no_power_cuts is not None:
        pytest.skip(servers.no_power_cuts)
    for host in HOSTS:
        network.link_down(host)
    servers.cut_power(HOSTS, random.Random(3))
    for host in HOSTS:
        network.vanish(host)
    servers.restore_power(HOSTS)
    for host in HOSTS:
        network.appear(host)
        network.link_up(host)
    for name in STORE_HOSTS:
        servers.up(name)
    servers.up("master")
    servers.restart_standby()


def fill(servers: LabServers) -> None:
    rows = [f"INSERT INTO kept VALUES ({number}) RETURNING 1" for number in range(ROWS)]
    servers.sql("CREATE TABLE kept (number int)", *rows)
    with servers.client("synced") as link:
        for number in range(ROWS):
            link.rpush("kept", number)


def kept(servers: LabServers) -> tuple[int, int]:
    with servers.client("synced") as link:
        return servers.sql("SELECT count(*) FROM kept")[0][0], link.llen("kept")


def forgets_the_newest(servers: LabServers, network: Network) -> bool:
    """Whether the store that syncs every second has lost some of what it had answered just before a cut."""
    with servers.client("default") as link:
        for number in range(ROWS):
            pushed = link.rpush("young", number)
    servers.cut_power(["store1"], random.Random(3))
    network.vanish("store1")
    servers.restore_power(["store1"])
    network.appear("store1")
    servers.up("default")
    with servers.client("default") as link:
        return bool(link.llen("young") < pushed)


def test_a_loss_of_power_costs_nothing_that_was_synced_and_something_that_was_not_and_clocks_are_those_of_the_host(
    on_servers: Callable[[LabMutant | None, Body], None],
) -> None:
    def body(servers: LabServers, network: Network, clocks: HostClocks) -> None:
        fill(servers)
        cut_all(servers, network)
        assert kept(servers) == (ROWS, ROWS)
        # The sync of every second may come between the last answer and a cut.
        assert any(forgets_the_newest(servers, network) for _ in range(CUTS_MAX))
        if clocks.unavailable is not None:
            pytest.skip(clocks.unavailable)
        clocks.step("db1", -3600.0)
        clocks.step("store2", 600.0)
        behind = time.time() - servers.sql("SELECT extract(epoch FROM clock_timestamp())::float8")[0][0]
        with servers.client("synced") as link, servers.client("default") as other:
            ahead = link.time()[0] - time.time()
            right = other.time()[0] - time.time()
        assert behind == pytest.approx(3600, abs=300)
        assert ahead == pytest.approx(600, abs=300)
        assert right == pytest.approx(0, abs=300)

    on_servers(None, body)


@pytest.mark.long
@pytest.mark.parametrize("mutant", list(LabMutant))
def test_servers_that_sync_nothing_do_not_outlive_the_loss_of_power(
    on_servers: Callable[[LabMutant | None, Body], None], mutant: LabMutant
) -> None:
    def body(servers: LabServers, network: Network, clocks: HostClocks) -> None:
        fill(servers)
        try:
            cut_all(servers, network)
        except (EmbeddedError, DiskUnavailable):
            return  # what is left is no database, or no file system
        try:
            found = kept(servers)
        except asyncpg.PostgresError:
            return  # not even the table is left, or its pages are not readable
        assert found[0] < ROWS

    on_servers(mutant, body)
