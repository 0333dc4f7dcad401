"""Submits of jobs that require a capability, while some owner of a bucket lacks it."""

from __future__ import annotations

import pytest

from jobmaster import BulkFailed, Handlers, InputError, Limit, call, chain
from jobmaster.model.job import Durability
from tests.integration.client.conftest import OpenCluster
from tests.integration.client.fixture import ClientFixture, DrivenAgent, handlers, resize

limited = Handlers()


@limited.job(name="images.resize", limit=Limit("images", 3))
async def limited_resize(path: str) -> None: ...


@pytest.fixture
async def mixed(client: ClientFixture) -> ClientFixture:
    """One of two owners is an older program that knows no capability."""
    older = DrivenAgent(client.master, client.agent.store, client.agent.store_name)
    older.capabilities = ()
    await older.start(handlers)
    await older.open()
    await client.cluster.submit(resize, {"path": "warm"})  # the plain way is remembered
    return client


async def test_a_job_that_requires_a_capability_waits_in_the_master_and_plain_ones_in_buckets(
    mixed: ClientFixture,
) -> None:
    plain = [await mixed.cluster.submit(resize, {"path": "a"}) for _ in range(4)]
    assert {receipt.level for receipt in plain} == {Durability.STORE}
    timed = [await mixed.cluster.submit(resize, {"path": "a"}, complete_time=60.0) for _ in range(4)]
    timed.append(await mixed.cluster.submit(resize, {"path": "a"}, complete_time=60.0, durability="master"))
    assert {(receipt.level, receipt.bucket_id) for receipt in timed} == {(Durability.MASTER, None)}
    assert len(await mixed.rows()) == 5
    summary = await mixed.cluster.submit_many([{"path": "a"}] * 20, resize, complete_time=60.0)
    assert summary.submitted == 20
    assert len(await mixed.rows()) == 25


async def test_where_every_owner_has_the_capability_such_jobs_go_into_buckets(client: ClientFixture) -> None:
    receipt = await client.cluster.submit(resize, {"path": "a"}, complete_time=60.0)
    assert receipt.level is Durability.STORE
    assert await client.rows() == {}


async def words(client: ClientFixture) -> list[list[str]]:
    connection = await client.connect()
    rows = await connection.fetch("SELECT required_words(headers) AS words FROM job ORDER BY id")
    await connection.close()
    return [row["words"] for row in rows]


async def test_jobs_of_a_handler_with_a_limit_go_to_agents_that_know_limits(
    mixed: ClientFixture, open_cluster: OpenCluster
) -> None:
    cluster = await open_cluster(handlers=limited)
    for _ in range(3):  # the way of plain submits is not remembered for it
        receipt = await cluster.submit(limited_resize, {"path": "a"})
        assert (receipt.level, receipt.bucket_id) == (Durability.MASTER, None)
    await cluster.submit_many([{"path": "a"}] * 5, limited_resize, tags=["t"])
    assert await words(mixed) == [["limits"]] * 8
    await cluster.submit_many([call(limited_resize, "a")] * 2, complete_time=0)
    with pytest.raises(BulkFailed, match="has a limit"):
        await cluster.submit_many([call(limited_resize, "a")] * 2, complete_time=5)


async def test_a_producer_without_the_code_learns_of_the_limit(
    client: ClientFixture, open_cluster: OpenCluster
) -> None:
    older = DrivenAgent(client.master, client.agent.store, client.agent.store_name)
    older.capabilities = tuple(word for word in client.agent.capabilities if word != "limits")
    await older.start(handlers)
    await older.open()
    await client.agent.start(limited)  # publishes the handler
    cluster = await open_cluster(handlers=Handlers())
    receipt = await cluster.submit("images.resize", {"path": "a"})
    assert (receipt.level, await words(client)) == (Durability.MASTER, [["limits"]])
    with pytest.raises(InputError, match="has a limit"):
        await cluster.submit("images.resize", {"path": "a"}, complete_time=5)


async def test_jobs_of_batches_and_steps_of_workflows_name_what_an_agent_must_know(mixed: ClientFixture) -> None:
    async with mixed.cluster.batch("images") as batch:
        await batch.submit_many([{"path": "a"}] * 3, resize)
        await batch.submit(resize, {"path": "a"})
    await mixed.cluster.workflows.start("images", chain(call(resize, "a"), call(resize, "b")))
    assert sorted(await words(mixed)) == [["batches"]] * 4 + [["workflows"]]
