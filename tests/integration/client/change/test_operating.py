"""Agents are drained and buckets frozen by ``cluster.operate``, with a line in the operator log."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from jobmaster import Unique
from jobmaster.model.bucket import BucketState
from jobmaster.model.errors import InputError, NotFound
from jobmaster.model.flow.uniqueness import UniqueTerm
from jobmaster.model.job import JobState
from jobmaster.ports import ReplyStatus
from tests.integration.client.conftest import OpenCluster
from tests.integration.client.fixture import ClientFixture, resize


async def log_of(client: ClientFixture) -> list[tuple[str, str]]:
    connection = await client.connect()
    try:
        return [tuple(row) for row in await connection.fetch("SELECT actor, action FROM operator_log ORDER BY seq")]
    finally:
        await connection.close()


async def test_buckets_are_frozen_in_the_master_and_in_their_store(client: ClientFixture) -> None:
    operate = client.cluster.operate
    first, second = (UUID(bytes=bucket.id) for bucket in client.agent.buckets[("default", 3)])
    frozen = await operate.freeze([first], reason="charges twice", actor="ann")
    assert [(UUID(bytes=each.id), each.state) for each in frozen.buckets] == [(first, BucketState.FROZEN)]
    assert frozen.warnings == []
    bucket = next(each for each in client.agent.buckets[("default", 3)] if each.id == first.bytes)
    assert (await client.store.claim(client.agent.fence(bucket), "a", 10)).status is not ReplyStatus.OK
    assert [UUID(bytes=each.id) for each in (await operate.freeze(lane="default", actor="ann")).buckets] == [second]
    assert (await operate.freeze(every=True)).buckets == []
    thawed = await operate.unfreeze(every=True, actor="ben")
    assert {(UUID(bytes=each.id), each.epoch) for each in thawed.buckets} == {(first, 2), (second, 2)}
    assert await log_of(client) == [("ann", "bucket freeze")] * 2 + [("ben", "bucket unfreeze")] * 2


async def test_a_store_that_is_missing_is_a_warning_and_the_master_has_the_freeze(
    client: ClientFixture, open_cluster: OpenCluster
) -> None:
    elsewhere = await open_cluster(stores={})
    frozen = await elsewhere.operate.freeze(every=True)
    assert len(frozen.buckets) == 2
    (warning,) = frozen.warnings
    assert warning.startswith("store default is not in the configuration")


async def test_an_agent_is_asked_to_leave_once_it_is_known(client: ClientFixture) -> None:
    await client.cluster.operate.drain(UUID(bytes=client.agent.id), actor="ann")
    assert await log_of(client) == [("ann", "agent drain")]
    with pytest.raises(NotFound, match="no living agent"):
        await client.cluster.operate.drain(uuid4())


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"lane": "default", "every": True},
        {"buckets": []},
        {"buckets": ["nonsense"]},
        {"lane": "A B"},
        {"reason": "x" * 1001},
    ],
)
async def test_a_choice_that_cannot_be_meant_changes_nothing(client: ClientFixture, given: dict[str, object]) -> None:
    options = {"every": True, **given} if "reason" in given else given
    with pytest.raises(InputError):
        await client.cluster.operate.freeze(**options)  # type: ignore[arg-type]
    assert await log_of(client) == []


async def test_a_unique_key_is_listed_while_a_job_holds_it_and_free_after_its_release(client: ClientFixture) -> None:
    cluster = client.cluster
    first = await cluster.submit(resize, {"path": "a"}, unique=Unique(key="a"), after=600)
    await cluster.submit(resize, {"path": "b"}, unique=Unique(key="b", window="1h"), after=600)
    waiting = await cluster.submit(resize, {"path": "c"}, unique=Unique(key="c", debounce="1h"), after=600)
    ended = await cluster.submit(resize, {"path": "d"}, unique=Unique(key="d"), after=600)
    await cluster.cancel(ended)
    held = await cluster.inspect.unique_keys()
    assert [(each.key, each.term, each.state) for each in held] == [
        ("a", UniqueTerm.LIVE, JobState.HELD),
        ("b", UniqueTerm.WINDOW, JobState.HELD),
        ("c", UniqueTerm.WAITING, JobState.HELD),
    ]
    assert [each.until is not None for each in held] == [False, True, False]
    assert [each.job for each in await cluster.inspect.unique_keys("images.resize", "c")] == [waiting.id]
    assert await cluster.inspect.unique_keys("other") == []
    assert len(await cluster.inspect.unique_keys(limit=1)) == 1
    await cluster.operate.release_unique_key("images.resize", "a", actor="ann")
    assert ("ann", "unique release") in await log_of(client)
    again = await cluster.submit(resize, {"path": "a"}, unique=Unique(key="a"), after=600)
    assert again.id != first.id
    with pytest.raises(NotFound, match=r"no job of images\.resize has the unique key 'x'"):
        await cluster.operate.release_unique_key("images.resize", "x")
