"""A producer through a real PgBouncer in transaction mode, and everything else refused in one sentence."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from jobmaster.cli.main import run
from jobmaster.client.cluster import Cluster
from jobmaster.embedded import PostgresServer
from jobmaster.handlers import call
from jobmaster.model.errors import ConfigError, Conflict, JobMasterError, OutcomeUnknown, Refused, Unavailable
from jobmaster.model.event import JobEvent
from jobmaster.model.job import Durability, JobState
from jobmaster.settings.model import ClusterSettings, MasterSettings, Pooler, StoreSettings
from jobmaster.wiring import (
    drop_master,
    migrate_master,
    open_archive,
    open_cluster,
    open_master,
    open_reader,
    open_transactions,
)
from tests.conftest import MIGRATED_SCHEMA
from tests.integration.client.fixture import DrivenAgent, handlers, resize
from tests.support.patience import PATIENCE_SECONDS
from tests.support.processes import free_port
from tests.support.servers.migrated_databases import MigratedDatabases
from tests.support.servers.pgbouncer import PgBouncer, find_pgbouncer
from tests.support.waiting import eventually

PROGRAM = find_pgbouncer()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no program pgbouncer: install the package pgbouncer")


@pytest.fixture(scope="module")
async def databases(server_root: Path) -> AsyncIterator[MigratedDatabases]:
    """Of a PostgreSQL on TCP: a pooler of another account cannot enter the directory of the socket."""
    with PostgresServer(server_root / "behind-pooler", durable=False, port=free_port()) as server:
        databases = MigratedDatabases(server.tcp_dsn, MIGRATED_SCHEMA)
        yield databases
        await databases.close()


@pytest.fixture
async def direct(databases: MigratedDatabases, store_url: str, cluster_name: str) -> AsyncIterator[ClusterSettings]:
    """Settings of a migrated cluster without a pooler."""
    dsn = await databases.take(cluster_name)
    yield ClusterSettings(
        cluster=cluster_name,
        master=MasterSettings(dsn=dsn, schema=MIGRATED_SCHEMA, statement_timeout_seconds=120.0),
        stores={"default": StoreSettings(url=store_url)},
    )
    await databases.give_back(dsn)


@pytest.fixture
def new_pooler(direct: ClusterSettings) -> Iterator[Callable[..., PgBouncer]]:
    started: list[PgBouncer] = []

    def start(**options: Any) -> PgBouncer:
        assert PROGRAM is not None
        assert direct.master.dsn is not None
        started.append(PgBouncer(PROGRAM, direct.master.dsn, **options))
        return started[-1]

    yield start
    for pooler in started:
        pooler.close()


def through(settings: ClusterSettings, pooler: PgBouncer, mode: Pooler = Pooler.TRANSACTION) -> ClusterSettings:
    master = msgspec.structs.replace(settings.master, dsn=pooler.dsn, pooler=mode)
    return msgspec.structs.replace(settings, master=master)


@pytest.fixture
async def agent(direct: ClusterSettings) -> AsyncIterator[DrivenAgent]:
    """An agent that the test drives; it is connected to PostgreSQL itself."""
    async with await open_cluster(direct) as opened:
        master: Any = opened.master
        store: Any = opened.stores["default"]
        agent = DrivenAgent(master, store, "default")
        known = await master.stores.store_generation("default", bytes(16))
        await store.initialise(master.cluster.uid, known.generation)
        await agent.start(handlers)
        await agent.open()
        yield agent


async def test_a_producer_does_all_its_work_through_a_pooler(
    direct: ClusterSettings, agent: DrivenAgent, new_pooler: Callable[..., PgBouncer]
) -> None:
    async with await open_cluster(through(direct, new_pooler()), handlers) as cluster:
        plain = await cluster.submit(call(resize, "a"))
        assert plain.level is Durability.STORE
        safe = await cluster.submit(call(resize, "b"), durability="master")
        held = await cluster.submit(call(resize, "c"), after=3600)
        keyed = await cluster.submit(call(resize, "d"), idempotency_key="d", durability="master")
        again = await cluster.submit(call(resize, "d"), idempotency_key="d", durability="master")
        assert (again.id, again.duplicate) == (keyed.id, True)
        with pytest.raises(Conflict):
            await cluster.submit(call(resize, "other"), idempotency_key="d")
        many = await cluster.submit_many([call(resize, str(i)) for i in range(2500)], after=3600)
        assert many.by_level == {Durability.MASTER: 2500}
        assert await held.cancel() is JobState.CANCELLED
        assert await held.wait(timeout=PATIENCE_SECONDS) is JobState.CANCELLED
        assert (await cluster.get(safe)).state is JobState.ASSIGNED
        held_jobs = await cluster.jobs(state=JobState.HELD, limit=5)
        assert {view.id for view in held_jobs} < set(many.ids)
        assert len(held_jobs) == 5
        assert await cluster.attempts(safe) == []
        once_more = await cluster.retry(held)
        assert (await cluster.get(once_more)).metadata["retry_of"] == str(held.id)
        waiting = asyncio.create_task(plain.result(timeout=PATIENCE_SECONDS))
        await agent.work_off(result=b'{"width":1,"height":1}')
        assert (await waiting).width == 1
        recorded = [event async for event in cluster.events("start", follow=False, kinds="job_succeeded")]
        assert plain.id in {event.id for event in recorded if isinstance(event, JobEvent)}
        assert await cluster.logs(plain) == []


async def test_transactions_of_many_producers_share_two_server_connections(
    direct: ClusterSettings, agent: DrivenAgent, new_pooler: Callable[..., PgBouncer]
) -> None:
    """Each goes to whichever is free. Another program leaves its search path on them."""
    pooler = new_pooler(size=2)
    settings = through(direct, pooler)
    stranger = await asyncpg.connect(pooler.dsn, statement_cache_size=0)

    async def disturb() -> None:
        while True:
            await stranger.execute("SET search_path = nowhere; SET statement_timeout = 1; RESET statement_timeout")
            await asyncio.sleep(0)

    async def work(cluster: Cluster, number: int) -> None:
        for i in range(10):
            receipt = await cluster.submit(call(resize, f"{number} {i}"), durability="master", after=60)
            assert (await receipt.get()).handler == "images.resize"

    disturbing = asyncio.create_task(disturb())
    clusters = [await open_cluster(settings, handlers) for _ in range(3)]
    try:
        await asyncio.gather(*(work(cluster, number) for number in range(4) for cluster in clusters))
    finally:
        disturbing.cancel()
        await asyncio.gather(disturbing, return_exceptions=True)
        for cluster in clusters:
            await cluster.close()
        await stranger.close()


async def test_nothing_of_a_producer_stays_on_a_server_connection(
    direct: ClusterSettings, new_pooler: Callable[..., PgBouncer]
) -> None:
    pooler = new_pooler(size=1)
    async with await open_cluster(through(direct, pooler), handlers) as cluster:
        await cluster.submit(call(resize, "a"), durability="master", after=60)
        stranger = await asyncpg.connect(pooler.dsn, statement_cache_size=0)
        async with stranger.transaction():
            left = {
                name: await stranger.fetchval(f"SHOW {name}")
                for name in ("search_path", "jit", "enable_seqscan", "lock_timeout", "timezone")
            }
            prepared = await stranger.fetchval("SELECT count(*) FROM pg_prepared_statements WHERE name <> ''")
        await stranger.close()
    own = await asyncpg.connect(direct.master.dsn or "")
    assert left == {name: await own.fetchval(f"SHOW {name}") for name in left}
    await own.close()
    assert prepared == 0


async def test_the_limits_of_a_statement_hold_through_a_pooler(
    direct: ClusterSettings, new_pooler: Callable[..., PgBouncer]
) -> None:
    limited = msgspec.structs.replace(
        direct, master=msgspec.structs.replace(direct.master, statement_timeout_seconds=2.0)
    )
    master = await open_master(through(limited, new_pooler(size=1)), application_name="limits", producer=True)
    try:
        used: list[Any] = []

        async def run(connection: Any, seconds: float) -> None:
            used.append(connection)
            await connection.execute(f"SELECT pg_sleep({seconds})")

        with pytest.raises(Unavailable, match="statement timeout") as caught:
            await master.statements.run("slow", lambda connection: run(connection, 30))
        assert not isinstance(caught.value, OutcomeUnknown), "it was rolled back"
        await master.statements.run("quick", lambda connection: run(connection, 0))
        assert used[0] is used[1], "the connection is in use again"
    finally:
        await master.close()


async def test_a_lost_pooler_leaves_the_outcome_unknown_and_comes_back(
    direct: ClusterSettings, new_pooler: Callable[..., PgBouncer]
) -> None:
    """It dies with a write under way: the write may have happened."""
    pooler = new_pooler(size=1)
    master = await open_master(through(direct, pooler), application_name="lost", producer=True)
    try:
        writing = asyncio.create_task(
            master.statements.run("intake/slow", lambda connection: connection.execute("SELECT pg_sleep(60)"))
        )
        own = await asyncpg.connect(direct.master.dsn or "")

        async def under_way() -> bool:
            running = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)'"
            return bool(await own.fetchval(running))

        await eventually(under_way, PATIENCE_SECONDS, "the write has reached PostgreSQL")
        await own.close()
        pooler.kill()
        with pytest.raises(OutcomeUnknown):
            await writing
        pooler.start()
        assert await master.queries.states([bytes(16)]) == {}
    finally:
        await master.close()


async def test_without_the_setting_a_pooler_is_one_sentence(
    direct: ClusterSettings, new_pooler: Callable[..., PgBouncer]
) -> None:
    """The same for an agent, whose master is opened without it."""
    settings = through(direct, new_pooler(), Pooler.NONE)
    for producer in (True, False):
        with pytest.raises(Refused, match=r"PgBouncer stands between .* unsupported startup parameter") as caught:
            await open_master(settings, application_name="refused", producer=producer)
        assert "master.pooler: transaction" in str(caught.value)
        assert "\n" not in str(caught.value)


async def test_a_pooler_that_ends_transactions_with_each_statement_is_refused(
    direct: ClusterSettings, new_pooler: Callable[..., PgBouncer]
) -> None:
    with pytest.raises(JobMasterError, match="statement pooling") as caught:
        await open_cluster(through(direct, new_pooler(mode="statement")))
    assert "\n" not in str(caught.value)


async def test_the_commands_about_jobs_work_through_a_pooler(
    direct: ClusterSettings, agent: DrivenAgent, new_pooler: Callable[..., PgBouncer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they write to the operator's log too, which comes after the act."""
    settings = through(direct, new_pooler())
    for name in [name for name in os.environ if name.startswith("JOBMASTER_")]:
        monkeypatch.delenv(name)
    async with await open_cluster(settings, handlers) as cluster:
        held = await cluster.submit(call(resize, "a"), after=3600)
    there = {
        "cluster": settings.cluster,
        "master.dsn": settings.master.dsn,
        "master.pooler": "transaction",
        "master.schema": MIGRATED_SCHEMA,
        "stores.default.url": settings.stores["default"].url,
    }
    options = [word for key, value in there.items() for word in ("--set", f"{key}={value}")]
    for command in ("list", "show", "cancel", "retry"):
        named = () if command == "list" else (str(held.id),)
        assert await asyncio.to_thread(run, ["job", command, *named, *options]) == 0, command
    async with await open_cluster(direct) as cluster:
        (again,) = await cluster.jobs(state=JobState.ASSIGNED)
        assert again.metadata == {"retry_of": str(held.id)}


async def test_agents_and_commands_refuse_the_setting(
    direct: ClusterSettings, new_pooler: Callable[..., PgBouncer]
) -> None:
    settings = through(direct, new_pooler())
    openings: list[Callable[[], Any]] = [
        lambda: open_master(settings, application_name="agent"),
        lambda: migrate_master(settings),
        lambda: drop_master(settings),
        lambda: open_reader(settings),
        lambda: open_archive(settings),
    ]
    for opening in openings:
        with pytest.raises(ConfigError, match=r"master\.pooler is 'transaction'.*JOBMASTER_MASTER__POOLER=none"):
            await opening()
    with pytest.raises(ConfigError, match=r"master\.pooler"):
        open_transactions(settings, application_name="agent")
