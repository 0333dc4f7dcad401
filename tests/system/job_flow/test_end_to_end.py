"""From a producer's submit to one recorded outcome, through real servers and real processes."""

from __future__ import annotations

import asyncio
import copy
import secrets
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.embedded import ValkeyServer
from jobmaster.model.errors import JobFailed
from jobmaster.model.job import Durability, JobState, Priority
from jobmaster.wiring import open_cluster
from tests.conftest import MIGRATED_SCHEMA
from tests.support.deployment import AgentProcess, Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.processes import children_of
from tests.support.servers.migrated_databases import MigratedDatabases
from tests.support.waiting import eventually
from tests.system.jobs import add, fails, handlers, noop, note, started_at, third_time, threaded

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture(scope="module")
async def serving(
    tmp_path_factory: pytest.TempPathFactory, migrated_databases: MigratedDatabases, valkey_server: ValkeyServer
) -> AsyncIterator[Deployment]:
    """A deployment with one agent, for all tests that change neither."""
    name = f"test-{secrets.token_hex(6)}"
    dsn = await migrated_databases.take(name)
    made = Deployment(tmp_path_factory.mktemp("serving"), dsn, valkey_server.url, name)
    made.document["master"]["schema"] = MIGRATED_SCHEMA
    await made.start_agent()
    yield made
    await made.close()
    await migrated_databases.give_back(dsn)


@pytest.fixture
async def client(serving: Deployment) -> AsyncIterator[Cluster]:
    """A client of that deployment."""
    async with await open_cluster(serving.settings, handlers) as opened:
        yield opened


async def test_every_durability_ends_in_one_row(client: Cluster) -> None:
    quick = await client.submit(add, {"one": 2, "other": 3})
    safe = await client.submit(add, {"one": 20, "other": 30}, durability="master")
    assert (quick.level, safe.level) == (Durability.STORE, Durability.MASTER)
    assert await quick.result(timeout=PATIENCE_SECONDS) == 5
    assert await safe.result(timeout=PATIENCE_SECONDS) == 50
    view = await quick.get()
    assert (view.state, view.attempt, view.token) == (JobState.SUCCEEDED, 1, 1)
    assert (await safe.get()).token >= 2


async def test_five_thousand_jobs_of_all_priorities_each_end_once(
    deployment: Deployment, agent: AgentProcess, cluster: Cluster
) -> None:
    path = str(deployment.path("ran"))
    for priority in Priority:
        await cluster.submit_many([(note, {"path": path})] * 1000, priority=priority)

    async def done() -> bool:
        return (await deployment.states()).get("SUCCEEDED", 0) == 5000

    await eventually(done, 60, "5,000 outcomes")
    ran = [line[0] for line in deployment.witnessed("ran")]
    assert len(ran) == len(set(ran)) == 5000
    left = await deployment.fetch("SELECT count(*) FROM job WHERE state <> 'SUCCEEDED'")
    assert left[0][0] == 0


async def test_a_later_job_waits_in_the_master_and_starts_on_time(client: Cluster) -> None:
    receipt = await client.submit(started_at, {}, after=timedelta(seconds=1.0), durability="master")
    view = await receipt.get()
    assert view.due_us is not None
    assert view.state in (JobState.HELD, JobState.ASSIGNED) or time.time_ns() // 1000 >= view.due_us
    late_us = await receipt.result(timeout=PATIENCE_SECONDS) - view.due_us
    assert late_us >= -2_000, "two milliseconds of rounding and clocks"


async def test_due_soon_at_level_store(client: Cluster) -> None:
    receipt = await client.submit(add, {"one": 1, "other": 1}, after=0.5)
    assert await receipt.result(timeout=PATIENCE_SECONDS) == 2


async def test_failure_retry_and_their_history(serving: Deployment, client: Cluster) -> None:
    path = str(serving.path("tried"))
    failing = await client.submit(fails, {"path": path})
    with pytest.raises(JobFailed, match="as asked"):
        await failing.result(timeout=PATIENCE_SECONDS)
    assert len(serving.witnessed("tried")) == 2
    lines = await serving.fetch("SELECT outcome, token FROM attempt WHERE job_id = $1", failing.id)
    assert [tuple(line) for line in lines] == [("failed", 1)]
    third = await client.submit(third_time, {})
    assert await third.result(timeout=PATIENCE_SECONDS) == 3


async def test_thread_handlers_run(client: Cluster) -> None:
    assert await (await client.submit(threaded, {"one": 1})).result(timeout=PATIENCE_SECONDS) == 2


async def test_a_submit_in_the_callers_transaction_is_all_or_nothing(serving: Deployment, client: Cluster) -> None:
    import asyncpg

    connection = await asyncpg.connect(serving.dsn)
    try:
        transaction = connection.transaction()
        await transaction.start()
        gone = await client.submit(noop, {}, connection=connection)
        await transaction.rollback()
        async with connection.transaction():
            kept = await client.submit(noop, {}, connection=connection)
        assert await kept.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED
        assert await serving.fetch("SELECT FROM job WHERE id = $1", gone.id) == []
    finally:
        await connection.close()


async def test_jobs_for_a_priority_without_buckets_are_held_not_lost(deployment: Deployment, cluster: Cluster) -> None:
    deployment.document["agents"]["default"]["buckets"] = {
        "critical": 0,
        "high": 0,
        "low": 0,
        "very_low": 0,
        "medium": 1,
    }
    await deployment.start_agent()
    receipt = await cluster.submit(noop, {}, priority="critical")
    assert receipt.level is Durability.MASTER
    assert (await receipt.get()).state is JobState.HELD


async def test_lanes_are_matched_exactly(deployment: Deployment, cluster: Cluster) -> None:
    deployment.document["agents"]["default"] = {"lanes": {"payroll": {"medium": 1}}}
    await deployment.start_agent()
    paid = await cluster.submit(noop, {}, lane="payroll")
    assert await paid.wait(timeout=PATIENCE_SECONDS) is JobState.SUCCEEDED


async def test_two_stores_in_one_cluster(deployment: Deployment, new_valkey: object) -> None:
    from jobmaster.wiring import open_cluster
    from tests.system.jobs import handlers

    second = new_valkey()  # type: ignore[operator]
    deployment.document["stores"]["second"] = {"url": second.url}
    deployment.document["agents"]["second"] = {
        **copy.deepcopy(deployment.document["agents"]["default"]),
        "store": "second",
    }
    await deployment.start_agent("--name", "default")
    await deployment.start_agent("--name", "second")
    async with await open_cluster(deployment.settings, handlers) as cluster:
        # One by one: concurrent submits are gathered into one call to one bucket.
        receipts = [await cluster.submit(add, {"one": n, "other": n}) for n in range(200)]
        results = await asyncio.gather(*(receipt.result(timeout=PATIENCE_SECONDS) for receipt in receipts))
    assert results == [n + n for n in range(200)]
    stores = await deployment.fetch("SELECT DISTINCT store FROM bucket b JOIN job j ON j.bucket_id = b.id ORDER BY 1")
    assert [row[0] for row in stores] == ["default", "second"]


async def test_a_job_finds_the_agent_that_can_run_it(deployment: Deployment) -> None:
    """Agents with different handlers share a lane: producers choose buckets of who has it, onboarding asks by name."""
    from jobmaster.wiring import open_cluster
    from tests.system.handlers.other_jobs import handlers, rare

    await deployment.start_agent()
    await deployment.start_agent("--handlers", "tests.system.handlers.other_jobs")
    async with await open_cluster(deployment.settings, handlers) as cluster:
        receipts = [await cluster.submit(rare, {}) for _ in range(20)]
        many = await cluster.submit_many([(rare, {})] * 20)
        receipts += [await cluster.submit(rare, {}, durability="master") for _ in range(20)]
        assert [await receipt.result(timeout=PATIENCE_SECONDS) for receipt in receipts] == ["found"] * 40
        views = [await receipt.get() for receipt in receipts]

        async def all_over() -> bool:
            return (await deployment.states()).get("SUCCEEDED") == 60

        await eventually(all_over, 10, "all jobs to end")
    assert {view.attempt for view in views} == {1}
    assert {view.token for view in views[:20]} == {1}, "none had to be given back"
    tokens = await deployment.fetch("SELECT DISTINCT token FROM job WHERE id = ANY ($1::uuid[])", list(many.ids))
    assert [row["token"] for row in tokens] == [1]


async def test_a_job_runs_where_its_handler_finds_what_it_needs(deployment: Deployment) -> None:
    """Agents that do not provide it have neither the handler nor what it lives in."""
    from jobmaster.wiring import open_cluster
    from tests.system.handlers.card_jobs import OPENED, encode, handlers, plain, render, work

    handlers.merge(plain)
    default = copy.deepcopy(deployment.document["agents"]["default"])
    deployment.document["agents"]["cards"] = {**default, "provides": ["card"]}
    words = ("--handlers", "tests.system.handlers.card_jobs")
    ordinary = await deployment.start_agent("--name", "default", *words)
    async with await open_cluster(deployment.settings, handlers) as cluster:
        assert await (await cluster.submit(work, {})).result(timeout=PATIENCE_SECONDS) == "done"
        early = await cluster.submit(render, {}, durability="master", allow_unregistered=True)
        cards = await deployment.start_agent("--name", "cards", *words)
        receipts = [early]
        for handler in (render, encode):
            receipts += [await cluster.submit(handler, {}) for _ in range(10)]
            receipts += [await cluster.submit(handler, {}, durability="master") for _ in range(10)]
        ran_in = {await receipt.result(timeout=PATIENCE_SECONDS) for receipt in receipts}
        agents = cards.children()
        assert ran_in <= {*agents, *(child for agent in agents for child in children_of(agent))}, "its fork server, too"
        assert {(await receipt.get()).attempt for receipt in receipts} == {1}
    left_out = (await ordinary.wait_event("agent_started"))["left_out"]
    assert left_out == "cards.encode needs card; cards.render needs card"
    assert OPENED in cards.log.read_text()
    assert OPENED not in ordinary.log.read_text(), "neither the agent nor its worker process opens it"
