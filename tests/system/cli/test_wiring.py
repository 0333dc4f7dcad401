"""Addresses from a configuration, and what stays open when opening fails half-way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jobmaster.clock import new_id
from jobmaster.embedded import EmbeddedCluster, EmbeddedOptions
from jobmaster.model.errors import ConfigError, NotFound, SchemaMismatch, Unavailable
from jobmaster.model.job import JobState
from jobmaster.server_addresses import addresses
from jobmaster.settings.model import ClusterSettings, MasterSettings, StoreSettings
from jobmaster.wiring import migrate_master, open_cluster, open_reader, open_stores, open_sync_cluster
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import wait_until
from tests.system.cli.conftest import Result, Terminal


def settings(master_dsn: str, stores: dict[str, str | None], cluster: str = "default") -> ClusterSettings:
    return ClusterSettings(
        cluster=cluster,
        data_dir="no-such-directory",
        master=MasterSettings(dsn=master_dsn),
        stores={name: StoreSettings(url=url) for name, url in stores.items()},
    )


def test_what_the_configuration_names_is_taken() -> None:
    found = addresses(settings("postgresql://a@b/c", {"one": "redis://d:1/0", "two": "redis://e:1/0"}))
    assert found.dsn == "postgresql://a@b/c"
    assert found.urls == {"one": "redis://d:1/0", "two": "redis://e:1/0"}


def test_an_embedded_server_that_does_not_run_is_named_with_the_way_out() -> None:
    with pytest.raises(Unavailable, match=r"no Valkey server is running in no-such-directory .*stores\.two\.url"):
        addresses(settings("postgresql://a@b/c", {"one": "redis://d:1/0", "two": None}))


def test_two_stores_cannot_both_be_the_embedded_one() -> None:
    with pytest.raises(ConfigError, match=r"one, two have no url.*stores\.two\.url"):
        addresses(settings("postgresql://a@b/c", {"one": None, "two": None}))


@pytest.mark.slow
def test_running_embedded_servers_are_found_from_the_directory(server_root: Path) -> None:
    with EmbeddedCluster(server_root / "wired", EmbeddedOptions(durable=False)) as cluster:
        found = addresses(ClusterSettings(data_dir=str(server_root / "wired")))
        assert (found.dsn, found.urls) == (cluster.dsn, {"default": cluster.url})
    with pytest.raises(Unavailable, match="no PostgreSQL server is running"):
        addresses(ClusterSettings(data_dir=str(server_root / "wired")))


@pytest.mark.parametrize(
    "command",
    [
        ("agent", "run", "--handlers", "tests.system.jobs"),
        ("db", "migrate"),
        ("db", "status"),
    ],
    ids=" ".join,
)
def test_a_command_that_needs_postgresql_itself_refuses_a_pooler(
    inside: Callable[..., Result], command: tuple[str, ...]
) -> None:
    """Before a connection is made: nothing listens there, and a store has no address."""
    there = ("master.dsn=postgresql://a@127.0.0.1:1/b", "stores.default.url=redis://127.0.0.1:1/0")
    options = [word for each in (*there, "master.pooler=transaction") for word in ("--set", each)]
    ended = inside(*command, *options)
    assert ended.code == ConfigError.exit_code
    (error, *hint) = ended.err.splitlines()
    assert "master.pooler is 'transaction': only producers can work through a pooler" in error
    assert any("JOBMASTER_MASTER__POOLER=none" in line for line in [error, *hint])


async def test_nothing_stays_open_when_a_store_cannot_be_reached(
    master_dsn: str, store_url: str, cluster_name: str
) -> None:
    """Stores that must answer fail as a whole; a producer's cluster opens without the dead one, and closes as a whole."""
    broken = settings(master_dsn, {"good": store_url, "gone": "redis://127.0.0.1:1/0"}, cluster_name)
    await migrate_master(broken)
    with pytest.raises(Unavailable):
        await open_stores(broken)
    async with await open_cluster(broken) as cluster:
        assert set(cluster.stores) == {"good", "gone"}
        with pytest.raises(NotFound):
            await cluster.get(new_id())
    reader = await open_reader(broken)
    rows = await reader.rows("SELECT application_name FROM pg_stat_activity WHERE datname = current_database()")
    await reader.close()
    assert [row["application_name"] for row in rows] == ["jobmaster-reader"]


async def test_nothing_stays_open_when_the_master_refuses(master_dsn: str, store_url: str, cluster_name: str) -> None:
    unmade = settings(master_dsn, {"default": store_url}, cluster_name)
    with pytest.raises(SchemaMismatch, match="jobmaster db migrate"):
        await open_cluster(unmade)


@pytest.mark.cluster
@pytest.mark.slow
def test_the_face_without_await(dev: Terminal) -> None:
    here = ClusterSettings(data_dir=str(dev.data_dir))
    with open_sync_cluster(here) as cluster:
        receipt = cluster.submit("add", {"one": 1, "other": 2})
        assert receipt.result(timeout=PATIENCE_SECONDS) == 3
        assert cluster.get(receipt).state is JobState.SUCCEEDED
    wait_until(lambda: dev.call("status").code == 0, 10, "an undisturbed cluster")
