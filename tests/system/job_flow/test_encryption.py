"""Sealed payloads in a whole cluster: handlers and programs with the keys read them, the servers hold no plain text."""

from __future__ import annotations

import base64
import os
from typing import Any

import asyncpg
import pytest
import redis.asyncio

from jobmaster.client.cluster import Cluster
from jobmaster.encryption import CannotOpen, NotSealed
from jobmaster.handlers import call
from jobmaster.model.errors import InputError, JobFailed
from jobmaster.wiring import open_cluster
from tests.support.deployment import Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.system.handlers.sealed_jobs import echo, echo_isolated, echo_limited, echo_threaded, fail, handlers
from tests.system.operation.test_metrics import scrape

pytestmark = pytest.mark.slow

MARK = "plain-4711-text"


def _key() -> str:
    return base64.b64encode(os.urandom(32)).decode()


async def _dump(deployment: Deployment) -> bytes:
    """Everything that the servers hold of the cluster."""
    settings = deployment.settings
    connection = await asyncpg.connect(deployment.dsn)
    parts = [b""]
    tables = await connection.fetch(
        "SELECT c.oid::regclass::text AS name FROM pg_class c WHERE c.relnamespace = $1::regnamespace AND c.relkind = 'r'",
        settings.schema_name(),
    )
    for table in tables:
        rows = await connection.fetch(
            f"SELECT encode(convert_to(t::text, 'UTF8'), 'escape') AS one FROM {table['name']} AS t"
        )
        parts += [row["one"].encode() for row in rows]
        if table["name"].rpartition(".")[2].startswith(("job_", "attempt")):
            columns = await connection.fetch(
                "SELECT attname FROM pg_attribute WHERE attrelid = $1::text::regclass AND atttypid = 'bytea'::regtype",
                table["name"],
            )
            for column in columns:
                parts += [row[0] or b"" for row in await connection.fetch(f"SELECT {column[0]} FROM {table['name']}")]
    await connection.close()
    url = settings.stores["default"].url
    assert url is not None
    client = redis.asyncio.Redis.from_url(url)
    async for key in client.scan_iter(match=f"jm:{{{settings.cluster}*"):
        parts += await _items(client, key)
    await client.aclose()
    return b"\n".join(parts)


async def _items(client: Any, key: bytes) -> list[bytes]:
    match await client.type(key):
        case b"list":
            return list(await client.lrange(key, 0, -1))
        case b"zset":
            return list(await client.zrange(key, 0, -1))
        case b"set":
            return list(await client.smembers(key))
        case b"hash":
            return [each for pair in (await client.hgetall(key)).items() for each in pair]
    return [await client.get(key) or b""]


async def _ends(cluster: Cluster) -> list[Any]:
    """One job of each kind of handler; their results and errors are read back."""
    seen: list[Any] = []
    for handler in (echo, echo_threaded, echo_isolated, echo_limited):
        receipt = await cluster.submit(call(handler, MARK))
        assert await receipt.result(timeout=PATIENCE_SECONDS) == {"said": MARK}
        seen.append((await cluster.get(receipt)).arguments)
    keyed = await cluster.submit(call(echo, MARK), idempotency_key="once")
    assert (await cluster.submit(call(echo, MARK), idempotency_key="once")).duplicate
    held = await cluster.submit(call(echo, MARK), durability="master")
    bad = await cluster.submit(call(fail, MARK))
    assert [await each.result(timeout=PATIENCE_SECONDS) for each in (keyed, held)] == [{"said": MARK}] * 2
    with pytest.raises(JobFailed, match=MARK):
        await bad.result(timeout=PATIENCE_SECONDS)
    assert MARK in str((await cluster.attempts(bad))[-1].error)
    again = await cluster.retry(bad)
    with pytest.raises(JobFailed, match=MARK):
        await again.result(timeout=PATIENCE_SECONDS)
    summary = await cluster.submit_many([call(echo, MARK) for _ in range(5)])
    assert await cluster.results(summary.ids, timeout=PATIENCE_SECONDS) == [{"said": MARK}] * 5
    assert {view.arguments["text"] for view in await cluster.jobs(limit=50)} == {MARK}
    return seen


async def test_no_plain_text_lies_in_the_servers_and_keys_rotate_while_agents_run(deployment: Deployment) -> None:
    keys = {"k1": _key()}
    deployment.document["handlers"] = ["tests.system.handlers.sealed_jobs"]
    deployment.document["encryption"] = {"keys": keys, "active": "k1"}
    agent = await deployment.start_agent()
    async with await open_cluster(deployment.settings, handlers) as cluster:
        assert await _ends(cluster) == [{"text": MARK}] * 4
        waiting = await cluster.submit(call(echo, MARK), after=3600)
        moved = await cluster.submit(call(echo, "another"), after=3600, tags=["tag-in-the-master"])
        await cluster.pause(handler="echo")
        in_store = await cluster.submit(call(echo, MARK), tags=["tag-in-a-store"])
        dump = await _dump(deployment)
        assert MARK.encode() not in dump
        # Tags are not sealed: the dump holds what the servers hold.
        assert b"tag-in-the-master" in dump
        assert b"tag-in-a-store" in dump
        await cluster.resume(handler="echo")
        assert await in_store.result(timeout=PATIENCE_SECONDS) == {"said": MARK}
    # A rotation: agents get both keys, then producers seal with the new one.
    keys["k2"] = _key()
    assert await agent.terminate() == 0
    agent = await deployment.start_agent()
    deployment.document["encryption"]["active"] = "k2"
    async with await open_cluster(deployment.settings, handlers) as cluster:
        await _ends_again(cluster)
        # The arguments of one job in the row of another: they do not open there.
        await deployment.fetch(
            "UPDATE job SET args = (SELECT args FROM job WHERE id = $1) WHERE id = $2", waiting.id, moved.id
        )
        with pytest.raises(CannotOpen):
            await cluster.get(moved.id)
        for receipt in (waiting, moved):
            await cluster.run_now(receipt.id)
        assert await cluster.result(waiting.id, timeout=PATIENCE_SECONDS) == {"said": MARK}, "an old key opens"
        assert await cluster.wait(moved.id, timeout=PATIENCE_SECONDS) == "FAILED"
        lost = await cluster.master.queries.get(moved.id_bytes)
        assert lost is not None
        assert "CannotOpen" in str(lost.error)
    assert MARK.encode() not in await _dump(deployment)
    shown = deployment.run("config", "show")
    assert keys["k1"] not in shown.stdout + agent.log.read_text()
    assert await agent.terminate() == 0


async def test_a_job_that_no_key_has_sealed_is_not_run_where_a_seal_is_required(deployment: Deployment) -> None:
    deployment.document["handlers"] = ["tests.system.handlers.sealed_jobs"]
    deployment.document["observability"]["metrics_port"] = 0
    deployment.document["encryption"] = {"keys": {"k1": _key()}, "active": "k1", "require": ["*"]}
    agent = await deployment.start_agent()
    kinds = (echo, echo_threaded, echo_isolated, echo_limited)
    async with await open_cluster(deployment.settings, handlers) as cluster:
        del deployment.document["encryption"]
        async with await open_cluster(deployment.settings, handlers) as stranger:
            plain = [await stranger.submit(call(each, MARK)) for each in kinds]
            plain.append(await stranger.submit(call(echo, MARK), durability="master"))
            assert [await stranger.wait(each, timeout=PATIENCE_SECONDS) for each in plain] == ["FAILED"] * 5
            for each in plain:
                view = await stranger.get(each)
                assert (view.error and view.error.type, view.attempt) == ("jobmaster.encryption.NotSealed", 1)
        assert [await (await cluster.submit(call(each, MARK))).result(timeout=PATIENCE_SECONDS) for each in kinds] == [
            {"said": MARK}
        ] * 4
        with pytest.raises(NotSealed):
            await cluster.retry(plain[0])  # it would get a seal
        port = int((await agent.wait_event("metrics_served", 1))["port"])
        assert (await scrape(port))["jobmaster_jobs_not_sealed_total"] == 5
        with pytest.raises(InputError, match=r"a schedule does not seal .* 'echo'"):
            await cluster.schedules.put("nightly", "0 3 * * *", call(echo, MARK))
        with pytest.raises(InputError, match="a step of a workflow does not seal"):
            await cluster.workflows.start("flow", call(echo, MARK))
        with pytest.raises(InputError, match="a callback does not seal"):
            async with cluster.batch("many", on_complete=call(echo, MARK)):
                pass
        with pytest.raises(InputError, match="a statement does not seal"):
            cluster.statement(call(echo, MARK))
    assert await agent.terminate() == 0


async def _ends_again(cluster: Cluster) -> None:
    receipt = await cluster.submit(call(echo, MARK))
    assert await receipt.result(timeout=PATIENCE_SECONDS) == {"said": MARK}
    row = await cluster.master.queries.get(receipt.id_bytes)
    assert row is not None
    assert b'"k2.job.' in row.arguments_json
