"""Submits of jobs that require a capability, while some owner of a bucket lacks it."""

from __future__ import annotations

import pytest

from jobmaster.model.job import Durability
from tests.integration.client.fixture import ClientFixture, DrivenAgent, handlers, resize


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
