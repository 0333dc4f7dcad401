"""Ids that callers choose: looked up together, and seen wherever the first copy is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from jobmaster.agentstore.store import AgentStore
from jobmaster.client import bucket_directory, lookup
from jobmaster.client.cluster import Cluster
from jobmaster.client.receipts import JobReceipt
from jobmaster.clock import new_id
from jobmaster.codec import encode_entry
from jobmaster.embedded import PostgresServer, ValkeyServer
from jobmaster.master.master import Master
from jobmaster.master.schema.migrate import migrate
from jobmaster.model.bucket import BucketState
from jobmaster.model.bucket_map import MapChanges, MapVersion
from jobmaster.model.errors import Conflict, Unavailable
from jobmaster.model.job import Durability, Entry, JobState
from jobmaster.ports import SentBefore
from jobmaster.settings.model import ClusterSettings, MasterSettings, StoreSettings
from tests.integration.client.conftest import OpenCluster
from tests.integration.client.fixture import ClientFixture, DrivenAgent, handlers, pay, resize
from tests.integration.client.test_faults import second_store


@pytest.fixture
def asked(client: ClientFixture, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the store was scanned, and the master was asked."""
    counts: Counter[str] = Counter()
    find, sent_before, buckets = (
        client.store.find,
        client.master.queries.sent_before,
        client.master.queries.bucket_map,
    )

    async def counted_find(bucket_ids: Sequence[bytes], job_ids: Sequence[bytes], scan_max: int) -> Any:
        counts["find"] += len(bucket_ids)
        return await find(bucket_ids, job_ids, scan_max)

    async def counted_sent_before(job_ids: Sequence[bytes], bucket_ids: Sequence[bytes]) -> SentBefore:
        counts["sent_before"] += 1
        return await sent_before(job_ids, bucket_ids)

    async def counted_buckets(known: MapVersion | None) -> MapChanges:
        counts["buckets"] += 1
        return await buckets(known)

    monkeypatch.setattr(client.store, "find", counted_find)
    monkeypatch.setattr(client.master.queries, "sent_before", counted_sent_before)
    monkeypatch.setattr(client.master.queries, "bucket_map", counted_buckets)
    return counts


async def test_many_callers_with_ids_of_their_own_each_get_their_answer(
    client: ClientFixture, asked: Counter[str]
) -> None:
    """Some wait in a bucket, some have rows, some have ended, some are new; each kind also with another payload."""
    submit = client.cluster.submit
    ended = [(await submit(resize, {"path": str(i)})).id_bytes for i in range(10)]
    await client.agent.work_off()
    waiting = [(await submit(resize, {"path": str(i)})).id_bytes for i in range(20)]
    held = [(await submit(resize, {"path": str(i)}, after=3600)).id_bytes for i in range(20)]
    fresh = [new_id() for _ in range(200)]
    asked.clear()

    async def send(ids: list[bytes], wrong: bool = False) -> list[Any]:
        calls = [
            submit(pay, {"employee": i}, job_id=job_id) if wrong else submit(resize, {"path": str(i)}, job_id=job_id)
            for i, job_id in enumerate(ids)
        ]
        return await asyncio.gather(*calls, return_exceptions=True)

    groups = [send(waiting), send(held), send(ended), send(fresh), send(waiting, True), send(held, True)]
    in_bucket, in_rows, after_end, new, *refused = await asyncio.gather(*groups)
    assert [(one.id_bytes, one.level, one.duplicate) for one in in_bucket] == [
        (i, Durability.STORE, True) for i in waiting
    ]
    assert [(one.id_bytes, one.level, one.duplicate) for one in in_rows] == [(i, Durability.MASTER, True) for i in held]
    assert [(one.id_bytes, one.level, one.duplicate) for one in after_end] == [
        (i, Durability.MASTER, True) for i in ended
    ]
    assert [(one.id_bytes, one.level, one.duplicate) for one in new] == [(i, Durability.STORE, False) for i in fresh]
    assert {type(error) for group in refused for error in group} == {Conflict}
    assert (await client.waiting()).keys() == set(waiting) | set(fresh)
    assert asked["sent_before"] <= 3, "290 callers, one look for all that wait"
    assert asked["find"] <= 6, "two buckets, one scan of each"
    assert asked["buckets"] == 0


async def test_callers_one_after_the_other_do_not_read_the_buckets_anew(
    client: ClientFixture, asked: Counter[str]
) -> None:
    await client.cluster.submit(resize, {"path": "warm"})
    asked.clear()
    for _ in range(5):
        await client.cluster.submit(resize, {"path": "a"}, job_id=new_id())
    assert asked == {"sent_before": 5, "find": 10}


async def test_a_copy_in_a_bucket_that_was_opened_just_now_is_seen(client: ClientFixture, monkeypatch: Any) -> None:
    """This producer's picture of the buckets is older than the bucket, and it may not be renewed again so soon."""
    monkeypatch.setattr(bucket_directory, "REFRESH_AGAIN_SECONDS", 3600.0)
    await client.cluster.submit(resize, {"path": "warm"})
    await client.agent.open(count=1)
    newest = client.agent.buckets["default", 3][-1]
    others: dict[str, Any] = {"high_water_jobs": 10, "high_water_bytes": 10**6, "skew_ms_max": 10**6}
    job_id = new_id()
    await client.store.submit(newest.id, [encode_entry(Entry(job_id, 1, "images.resize", b'{"path":"a"}'))], **others)
    again = await client.cluster.submit(resize, {"path": "a"}, job_id=job_id)
    assert (again.bucket_id, again.duplicate) == (newest.id, True)
    with pytest.raises(Conflict):
        await client.cluster.submit(resize, {"path": "b"}, job_id=job_id)


@pytest.mark.parametrize("to", [BucketState.COMPLETING, BucketState.LOST, BucketState.FROZEN])
async def test_a_copy_in_a_bucket_that_takes_no_more_is_seen(
    client: ClientFixture, open_cluster: OpenCluster, to: BucketState
) -> None:
    first = await client.cluster.submit(resize, {"path": "a"})
    for bucket in client.agent.buckets["default", 3]:
        if to is BucketState.FROZEN:
            await client.master.buckets.freeze([bucket.id], None, "test", "test")
        else:
            assert await client.master.buckets.move_bucket(bucket.id, bucket.epoch, bucket.owner, to, "test")
    await client.agent.open(count=1)
    for cluster in (client.cluster, await open_cluster()):
        again = await cluster.submit(resize, {"path": "a"}, job_id=first.id_bytes)
        assert (again.id_bytes, again.bucket_id, again.duplicate) == (first.id_bytes, first.bucket_id, True)
        with pytest.raises(Conflict):
            await cluster.submit(resize, {"path": "b"}, job_id=first.id_bytes)
        assert (await cluster.get(first.id_bytes)).state is JobState.SAVE_PENDING


async def test_a_job_that_moves_to_the_master_during_the_look_is_seen(client: ClientFixture, monkeypatch: Any) -> None:
    """It leaves its bucket just before the bucket is looked into: then its row is there when the master is asked."""
    first = await client.cluster.submit(resize, {"path": "a"})
    find, moved = client.store.find, []

    async def too_late(*arguments: Any) -> Any:
        moved.append(await client.agent.work_off())
        return await find(*arguments)

    monkeypatch.setattr(client.store, "find", too_late)
    again = await client.cluster.submit(resize, {"path": "a"}, job_id=first.id_bytes)
    assert moved == [1]
    assert (again.level, again.duplicate) == (Durability.MASTER, True)


async def test_a_copy_less_safe_than_asked_is_sent_again(client: ClientFixture) -> None:
    first = await client.cluster.submit(resize, {"path": "a"})
    safer = await client.cluster.submit(resize, {"path": "a"}, job_id=first.id_bytes, durability="master")
    assert (safer.id_bytes, safer.level, safer.duplicate) == (first.id_bytes, Durability.MASTER, False)
    assert list(await client.rows()) == [first.id_bytes]


async def test_a_dead_store_hides_its_own_copies_only(
    client: ClientFixture, new_valkey: Callable[..., ValkeyServer], opened: AsyncExitStack, open_cluster: OpenCluster
) -> None:
    server = new_valkey()
    agent, settings = await second_store(client, server, opened)
    stores = {"default": client.store, "other": agent.store}
    both = await open_cluster(settings=settings, stores=stores)
    sent: list[JobReceipt[Any]] = await asyncio.gather(*(both.submit(resize, {"path": str(i)}) for i in range(5)))
    sent += [await both.submit(resize, {"path": str(i + 5)}) for i in range(35)]
    mine = {bucket.id for bucket in client.agent.buckets["default", 3]}
    server.kill()
    again = await asyncio.gather(
        *(both.submit(resize, {"path": str(i)}, job_id=one.id_bytes) for i, one in enumerate(sent)),
        *(both.submit(resize, {"path": "new"}, job_id=new_id()) for _ in range(10)),
    )
    assert {one.bucket_id for one in sent} - mine, "some were in the store that died"
    assert [one.duplicate for one in again] == [one.bucket_id in mine for one in sent] + [False] * 10
    assert {one.bucket_id for one in again} <= mine


async def test_a_store_that_is_away_is_not_asked_for_its_lost_buckets_by_every_caller(
    client: ClientFixture,
    new_valkey: Callable[..., ValkeyServer],
    opened: AsyncExitStack,
    open_cluster: OpenCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They stay in rescue for as long as it is away, and each look would wait for it. So would each page of one look."""
    monkeypatch.setattr(lookup, "FINDS_MAX", 1)
    server = new_valkey()
    agent, settings = await second_store(client, server, opened)
    cluster = await open_cluster(settings=settings, stores={"default": client.store, "other": agent.store})
    server.kill()
    for bucket in agent.buckets["default", 3]:
        assert await client.master.buckets.move_bucket(bucket.id, bucket.epoch, bucket.owner, BucketState.LOST, "test")
    asked, find = [], agent.store.find

    async def counted(*arguments: Any) -> Any:
        asked.append(arguments)
        return await find(*arguments)

    monkeypatch.setattr(agent.store, "find", counted)
    for _ in range(5):
        assert not (await cluster.submit(resize, {"path": "a"}, job_id=new_id())).duplicate
    assert len(asked) == 1


@pytest.mark.slow
async def test_while_the_master_is_down_copies_are_seen_and_new_jobs_taken(
    new_postgres: Callable[..., PostgresServer],
    client_settings: ClusterSettings,
    store_url: str,
    opened: AsyncExitStack,
) -> None:
    server, name = new_postgres(), client_settings.cluster
    fast = MasterSettings(connect_timeout_seconds=5.0, statement_timeout_seconds=5.0)
    schema = client_settings.schema_name()
    await migrate(dsn=server.dsn, schema=schema, cluster=name, settings=fast)
    master = await Master.connect(dsn=server.dsn, schema=schema, settings=fast, application_name="test")
    opened.push_async_callback(master.close)
    store = await AgentStore.connect(cluster=name, name="default", url=store_url, settings=StoreSettings())
    opened.push_async_callback(store.close)
    await store.initialise(master.cluster.uid, new_id())
    agent = DrivenAgent(master, store, "default")
    await agent.start(handlers)
    (bucket,) = await agent.open()
    cluster = Cluster(client_settings, master, {"default": store}, handlers=handlers)
    opened.push_async_callback(cluster.close)
    first = await cluster.submit(resize, {"path": "a"})
    server.kill()
    same, other, *fresh = await asyncio.gather(
        cluster.submit(resize, {"path": "a"}, job_id=first.id_bytes),
        cluster.submit(resize, {"path": "b"}, job_id=first.id_bytes),
        *(cluster.submit(resize, {"path": "c"}, job_id=new_id()) for _ in range(20)),
        return_exceptions=True,
    )
    assert isinstance(same, JobReceipt)
    assert (same.level, same.duplicate) == (Durability.STORE, True)
    assert isinstance(other, Conflict)
    assert {one.level for one in fresh if isinstance(one, JobReceipt)} == {Durability.STORE}
    with pytest.raises(Unavailable):
        await cluster.submit(resize, {"path": "a"}, job_id=first.id_bytes, durability="master")
    entries = [entry.id for entry in (await agent.claim(bucket))[1]]
    assert sorted(entries) == sorted([first.id_bytes, *(one.id_bytes for one in fresh if isinstance(one, JobReceipt))])


async def test_a_closed_cluster_sends_nothing(client: ClientFixture, open_cluster: OpenCluster) -> None:
    cluster = await open_cluster()
    await cluster.submit(resize, {"path": "warm"})
    calls = [asyncio.ensure_future(cluster.submit(resize, {"path": "a"}, job_id=new_id())) for _ in range(5)]
    await asyncio.sleep(0)
    await cluster.close()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(one, Unavailable | JobReceipt) for one in results), results
    there = {one.id_bytes for one in results if isinstance(one, JobReceipt)}
    assert len((await client.waiting()).keys()) == 1 + len(there)
