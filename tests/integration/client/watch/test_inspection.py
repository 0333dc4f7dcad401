"""``Cluster.inspect``: agents, hosts, buckets, rescues, the operator log, and all of it on one screen."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from jobmaster.client.sync import SyncCluster
from jobmaster.model.bucket import BucketState
from jobmaster.model.errors import InputError
from jobmaster.model.inspection.views import AgentStatistics
from jobmaster.model.job import Priority
from tests.integration.client.conftest import OpenCluster
from tests.integration.client.fixture import ClientFixture, resize

STATISTICS = AgentStatistics(
    slots=8, running=2, queued=1, ended_per_second=2.0, processor=0.5, memory_bytes=1000, threads=4,
    host_processors=16, host_load=1.5, host_memory_bytes=9000, host_memory_free_bytes=4000,
)  # fmt: skip


async def test_agents_and_hosts_show_what_agents_have_published(client: ClientFixture) -> None:
    inspect, members = client.cluster.inspect, client.master.members
    (agent,) = await inspect.agents()
    assert (agent.name, agent.host, agent.alive, agent.statistics, agent.statistics_at) == (
        "hand",
        "here",
        True,
        None,
        None,
    )
    (host,) = await inspect.hosts()
    assert (host.host, host.agents, host.slots, host.at) == ("here", 1, 0, None)
    await members.renew(client.agent.id, 600.0, STATISTICS)
    await members.renew(client.agent.id, 600.0)
    (agent,) = await inspect.agents()
    assert agent.id == UUID(bytes=client.agent.id)
    assert agent.statistics == STATISTICS, "a renewal without any leaves them"
    assert agent.statistics_at is not None
    assert agent.statistics_at >= agent.started_at
    (host,) = await inspect.hosts()
    assert (host.slots, host.running, host.processors, host.host_memory_free_bytes) == (8, 2, 16, 4000)
    assert host.at == agent.statistics_at
    await members.end_agent(client.agent.id, dead=True, reason="test")
    assert await inspect.agents() == []
    (ended,) = await inspect.agents(ended=True)
    assert (ended.alive, ended.lease_left_seconds, ended.ended_reason) == (False, None, "test")


async def test_buckets_have_their_depths_where_the_store_answers(
    client: ClientFixture, open_cluster: OpenCluster
) -> None:
    await client.cluster.submit(resize, {"path": "a"})
    found = await client.cluster.inspect.buckets()
    assert found.silent == ()
    assert sum(bucket.pending or 0 for bucket in found.buckets) == 1
    bucket = found.buckets[0]
    assert (bucket.state, bucket.owner_name, bucket.owner_leased) == (BucketState.ACTIVE, "hand", True)
    (event,) = await client.cluster.inspect.bucket_history(bucket.id)
    assert (event.from_state, event.to_state, event.epoch) == (None, BucketState.ACTIVE, 1)
    plain = await client.cluster.inspect.buckets(depths=False)
    assert {each.pending for each in plain.buckets} == {None}
    away = await (await open_cluster(stores={})).inspect.buckets()
    assert away.silent == ("store default is not in the configuration",)
    assert {each.kept for each in away.buckets} == {None}


async def test_a_lost_bucket_is_listed_until_its_rescue_is_over_and_after_it(client: ClientFixture) -> None:
    rescues = client.cluster.inspect.rescues
    assert await rescues() == []
    await client.master.members.end_agent(client.agent.id, dead=True, reason="test")
    lost = await rescues(since=60, unfinished=True)
    assert len(lost) == len((await client.cluster.inspect.buckets()).buckets)
    assert {(each.state, each.owner_name, each.rescuer, each.waited_us) for each in lost} == {
        ("waiting", "hand", None, None)
    }
    assert len(await rescues(since=timedelta(minutes=1), limit=1)) == 1


async def test_an_overview_counts_what_waits_and_says_how_long_it_takes(client: ClientFixture) -> None:
    cluster = client.cluster
    empty = await cluster.inspect.overview()
    assert (empty.ready, empty.drain_seconds, empty.agents_alive, empty.leader) == (0, 0.0, 1, None)
    for _ in range(3):
        await cluster.submit(resize, {"path": "a"})
    await cluster.submit(resize, {"path": "a"}, after=3600)
    await cluster.submit(resize, {"path": "a"}, after=3600, priority="low")
    later = await cluster.submit(resize, {"path": "a"}, after=3600, priority="low")
    await later.run_now()
    seen = await cluster.inspect.overview()
    assert (seen.ready, seen.drain_seconds) == (4, None), "no agent has published a rate"
    groups = {(group.lane, group.priority): group for group in seen.backlog}
    medium, low = groups["default", Priority.MEDIUM], groups["default", Priority.LOW]
    assert (medium.pending, medium.held, medium.due, medium.oldest_seconds) == (3, 1, 0, None)
    assert (low.buckets, low.held, low.due, low.overdue) == (0, 2, 1, 0)
    assert "default/low: 2 job(s) held and no bucket serves them" in seen.warnings
    await client.master.members.renew(client.agent.id, 600.0, STATISTICS)
    await cluster.pause(lane="payroll", reason="audit", timeout=0)
    seen = await cluster.inspect.overview()
    assert (seen.drain_seconds, seen.slots, seen.running) == (2.0, 8, 2)
    assert any("lane 'payroll' is paused by client: audit" in warning for warning in seen.warnings)
    decoded = msgspec.json.decode(msgspec.json.encode(seen))
    assert decoded["backlog"][0]["lane"] == "default"


async def test_an_overview_reads_agents_and_buckets_no_second_time(
    client: ClientFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspect, reads = client.cluster.inspect, client.cluster.master.inspection
    agents, buckets = await inspect.agents(), await inspect.buckets()
    whole = await inspect.overview()
    for name in ("agents", "buckets"):
        monkeypatch.setattr(reads, name, None)
    again = await inspect.overview(agents=agents, buckets=buckets)
    assert again == msgspec.structs.replace(whole, at=again.at)


async def test_the_operator_log_is_read_by_subject_actor_and_time(client: ClientFixture) -> None:
    held = [await client.cluster.submit(resize, {"path": "a"}, after=3600) for _ in range(2)]
    await held[0].cancel()
    await client.cluster.cancel(held[1], actor="ann@desk")
    log = client.cluster.inspect.operator_log
    assert [act.subject for act in await log()] == [str(held[1]), str(held[0])]
    (act,) = await log(actor="ann", since=60)
    assert (act.action, act.actor, act.subject) == ("job cancel", "ann@desk", str(held[1]))
    assert [act.actor for act in await log(subject=str(held[0])[:18], limit=5)] in (["client"], ["ann@desk", "client"])
    assert await log(actor="bob") == []


@pytest.mark.parametrize(
    ("method", "arguments", "words"),
    [
        ("rescues", {"limit": 0}, "from 1 to 100000"),
        ("rescues", {"since": -1}, "'since' must be"),
        ("operator_log", {"since": "yesterday"}, "'since' must be"),
        ("operator_log", {"subject": "a\0"}, "U.0000"),
        ("bucket_history", {"bucket": "here"}, "is not the id of a bucket"),
        ("bucket_history", {"bucket": 7}, "is not the id of a bucket"),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    client: ClientFixture, method: str, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        await getattr(client.cluster.inspect, method)(**arguments)


async def test_plain_code_reads_the_same(client: ClientFixture, plain: SyncCluster) -> None:
    def work() -> list[Any]:
        receipt = plain.submit(resize, {"path": "a"}, after=3600)
        seen = plain.inspect
        return [
            seen.overview().cluster,
            [agent.name for agent in seen.agents()],
            [host.host for host in seen.hosts()],
            {bucket.owner_name for bucket in seen.buckets(depths=False).buckets},
            [event.epoch for event in seen.bucket_history(seen.buckets().buckets[0].id)],
            (seen.rescues(), seen.operator_log(), seen.failures().groups),
            seen.explain(receipt).causes[0].cause,
            plain.count(due_before=7200),
        ]

    found = await asyncio.to_thread(work)
    assert found == [client.settings.cluster, ["hand"], ["here"], {"hand"}, [1], ([], [], ()), "due_later", (1, True)]
