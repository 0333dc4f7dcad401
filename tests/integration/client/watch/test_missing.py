"""A wait for a job that exists nowhere ends; a wait for one that may exist goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.client.jobs import existence, result_waiter
from jobmaster.clock import new_id
from jobmaster.codec import encode_entry
from jobmaster.model.errors import NotFound, Unavailable, WaitTimeout
from jobmaster.model.job import Entry, JobState
from tests.integration.client.conftest import OpenCluster
from tests.integration.client.fixture import ClientFixture, resize
from tests.support.patience import PATIENCE_SECONDS

Wait = Callable[[Cluster, Any], Awaitable[Any]]
WAITS: dict[str, Wait] = {
    "wait": lambda cluster, job: cluster.wait(job),
    "wait_all": lambda cluster, job: cluster.wait_all([job]),
    "wait_saved": lambda cluster, job: cluster.wait_saved(job),
    "result": lambda cluster, job: cluster.result(job),
    "results": lambda cluster, job: cluster.results([job]),
    "as_ended": lambda cluster, job: anext(cluster.as_ended([job])),
}


@pytest.fixture(autouse=True)
def looks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_waiter, "EXISTENCE_SECONDS", 0.05)
    monkeypatch.setattr(result_waiter, "EXISTENCE_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(result_waiter, "REREAD_SECONDS", 0.1)
    monkeypatch.setattr(result_waiter, "READ_SECONDS", PATIENCE_SECONDS)


async def soon(what: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(what, PATIENCE_SECONDS / 2)


@pytest.mark.parametrize("name", WAITS)
async def test_a_wait_for_an_id_that_exists_nowhere_ends(client: ClientFixture, name: str) -> None:
    with pytest.raises(NotFound, match="there is no job"):
        await soon(WAITS[name](client.cluster, new_id()))


async def test_a_time_out_before_the_look_is_not_found_too(
    client: ClientFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_waiter, "EXISTENCE_SECONDS", 3600.0)
    with pytest.raises(NotFound):
        await soon(client.cluster.wait(new_id(), timeout=0.05))


async def test_the_missing_ones_of_many_are_named(client: ClientFixture) -> None:
    there = await client.cluster.submit(resize, {"path": "a"})
    missing = [new_id() for _ in range(5)]
    with pytest.raises(NotFound, match="and 2 more"):
        await soon(client.cluster.wait_all([there, *missing]))
    await client.agent.work_off(result=b"null")
    answers = await soon(client.cluster.results([missing[0], there, missing[1]], return_exceptions=True))
    assert isinstance(answers[0], NotFound)
    assert isinstance(answers[2], NotFound)
    assert str(answers[0]) != str(answers[2])


async def test_a_receipt_is_never_doubted(client: ClientFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = await client.connect()
    transaction = connection.transaction()
    await transaction.start()
    receipt = await client.cluster.submit(resize, {"path": "a"}, connection=connection)
    with pytest.raises(WaitTimeout):
        await receipt.wait(timeout=0.3)
    with pytest.raises(NotFound):
        await client.cluster.wait(receipt.id, timeout=0.3)
    await transaction.commit()
    await connection.close()
    with pytest.raises(WaitTimeout):
        await client.cluster.wait(receipt.id, timeout=0.3)

    async def asked(job_ids: Any) -> Any:
        raise AssertionError("jobs of a summary were submitted here")

    summary = await client.cluster.submit_many([{"path": "a"}] * 3, resize)
    waiter = client.cluster._open_waiter()
    monkeypatch.setattr(waiter._existence, "of", asked)
    with pytest.raises(WaitTimeout):
        await client.cluster.wait_all(summary.ids, timeout=0.3)


@pytest.mark.parametrize("place", ["pending", "claimed", "assigned", "row"])
async def test_a_job_that_waits_anywhere_is_waited_for(
    client: ClientFixture, open_cluster: OpenCluster, place: str
) -> None:
    of_place: dict[str, dict[str, Any]] = {"assigned": {"durability": "master"}, "row": {"after": 3600}}
    options: Any = of_place.get(place, {})
    receipt = await client.cluster.submit(resize, {"path": "a"}, **options)
    if place == "claimed":
        bucket = next(b for b in client.agent.buckets["default", 3] if b.id == receipt.bucket_id)
        await client.agent.claim(bucket)
    stranger = await open_cluster()
    with pytest.raises(WaitTimeout):
        await stranger.wait(receipt.id, timeout=0.5)


async def test_what_cannot_be_looked_into_leaves_the_question_open(
    client: ClientFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store or master without an answer, a deep bucket, a kept outcome, an unknown store: each in turn."""
    cluster, gone = client.cluster, new_id()

    async def away(*_: Any, **__: Any) -> Any:
        raise Unavailable("away")

    async def goes_on() -> None:
        with pytest.raises(WaitTimeout):
            await soon(cluster.wait(gone, timeout=0.3))

    for target, name in ((client.store, "find"), (client.store, "depths"), (client.master.queries, "sent_before")):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, away)
            await goes_on()
    with monkeypatch.context() as patch:
        patch.setattr(existence, "DEPTH_MAX", 0)
        await cluster.submit(resize, {"path": "a"})
        await goes_on()
    with monkeypatch.context() as patch:
        depths = client.store.depths

        async def keeping(bucket_ids: Any) -> Any:
            return [type(depth)(0, 0, 0, 1, 0) if depth else None for depth in await depths(bucket_ids)]

        patch.setattr(client.store, "depths", keeping)
        await goes_on()
    connection = await client.connect()
    await connection.execute("UPDATE bucket SET store = 'elsewhere' WHERE id = $1::uuid", _uuid(client))
    await cluster._buckets.renew(outdated=True)
    await goes_on()
    await connection.execute("UPDATE bucket SET store = 'default'")
    await connection.close()
    await cluster._buckets.renew(outdated=True)
    with pytest.raises(NotFound):
        await soon(cluster.wait(gone, timeout=PATIENCE_SECONDS))


def _uuid(client: ClientFixture) -> str:
    return client.agent.buckets["default", 3][0].id.hex()


async def test_a_bucket_that_was_opened_since_is_looked_into(client: ClientFixture, open_cluster: OpenCluster) -> None:
    stranger = await open_cluster()
    await stranger.submit(resize, {"path": "first"})
    (bucket,) = await client.agent.open()
    job_id = new_id()
    answer = await client.store.submit(
        bucket.id, [_entry(job_id)], high_water_jobs=10, high_water_bytes=10**6, skew_ms_max=10**6
    )
    assert answer.status == "OK"
    with pytest.raises(WaitTimeout):
        await stranger.wait(job_id, timeout=0.4)


def _entry(job_id: bytes) -> bytes:
    return encode_entry(Entry(job_id, 1, "images.resize", b'{"path":"a"}'))


async def test_a_job_that_ends_while_it_is_looked_for_is_not_missing(
    client: ClientFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket is looked into after the job has left it: the master is read last, so its row is seen."""
    receipt = await client.cluster.submit(resize, {"path": "a"})
    find = client.store.find

    async def after_its_end(*args: Any) -> Any:
        await client.agent.work_off(result=b"null")
        return await find(*args)

    monkeypatch.setattr(client.store, "find", after_its_end)
    assert await soon(client.cluster.wait(receipt.id)) is JobState.SUCCEEDED
