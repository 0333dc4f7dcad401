"""Ordering keys of handlers: every way to submit gives a job the same key, and makes it a committed row."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest

from jobmaster.client.bulk import BulkFailed
from jobmaster.client.workflows.definition import chain, previous
from jobmaster.clock import new_id
from jobmaster.codec import decode_headers
from jobmaster.handlers import Handlers, Unique, call
from jobmaster.master.driver.statements import sql as statement
from jobmaster.model.errors import InputError, InvalidArguments, Unavailable
from jobmaster.model.job import Durability, Headers, NewJob
from jobmaster.ports import Written
from jobmaster.settings.model import Thresholds
from jobmaster.settings.submit_rules import submit_rules
from tests.integration.client.conftest import OpenCluster
from tests.integration.client.fixture import ClientFixture

handlers = Handlers()


@handlers.job(name="change", ordering_key="order:{order}/{part}")
async def change(order: int, part: str = "all") -> int:
    return order


@handlers.job(name="recount", ordering_key=lambda arguments: f"order:{arguments['order']}/all", lane="payroll")
async def recount(order: int) -> None: ...


@handlers.job(name="plain")
async def plain(order: int) -> None: ...


@handlers.job(name="both", ordering_key="{order}", unique=Unique())
async def both(order: int) -> None: ...


async def published(client: ClientFixture, connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """What agents publish of the handlers, and the rules of submits in SQL."""
    await client.master.members.publish_submit_rules(submit_rules(client.settings))
    specs = [handler.spec for handler in handlers]
    await connection.execute(
        statement("members/publish_handlers"),
        UUID(bytes=new_id()),
        [spec.name for spec in specs],
        [msgspec.json.encode(spec).decode() for spec in specs],
        [spec.digest for spec in specs],
    )


async def test_every_way_to_submit_gives_the_key_that_the_handler_declares(
    client: ClientFixture, open_cluster: OpenCluster
) -> None:
    connection = await client.connect()
    await published(client, connection)
    await client.agent.open("payroll", 3)
    mine, others = await open_cluster(handlers=handlers), await open_cluster(handlers=Handlers())

    async def headers(job: object) -> Headers:
        return decode_headers(await connection.fetchval("SELECT headers FROM job WHERE id = $1", UUID(str(job))))

    try:
        receipts = [await mine.submit(change, {"order": 7}), await others.submit("change", {"order": 7, "part": "all"})]
        assert [receipt.level for receipt in receipts] == [Durability.MASTER] * 2
        jobs: list[object] = [str(receipt) for receipt in receipts]
        for cluster in (mine, others):
            summary = await cluster.submit_many([{"order": 7}] * 2, "change")
            assert summary.by_level == {Durability.MASTER: 2}
            jobs += summary.ids
            async with connection.transaction():
                jobs.append(str(await cluster.submit("change", {"order": 7}, connection=connection)))
            text, values = cluster.statement("change", {"order": 7}, paramstyle="numeric")
            jobs.append(await connection.fetchval(text, *values))
        jobs.append(await connection.fetchval("SELECT submit('change', '{\"order\": 7}', '{\"tags\": [\"a\"]}')"))
        jobs.append(str(await mine.submit(recount, {"order": 7})))
        await mine.workflows.start("one step", chain(call(change, 7)))
        of_step = "SELECT id FROM job WHERE position('\"workflow\":'::bytea IN headers) > 0"
        jobs.append(await connection.fetchval(of_step))
        for job in jobs:
            found = await headers(job)
            assert (found.ordering_key, "ordering" in found.requires) == ("order:7/all", True), job
        await mine.schedules.put("nightly", "0 3 * * *", call(change, 7))
        (stored,) = await client.master.schedules.list(["nightly"])
        assert decode_headers(stored.schedule.headers).ordering_key == "order:7/all"
        own = await mine.submit(change, {"order": 7}, ordering_key="mine")
        assert (await headers(own)).ordering_key == "mine"
        by_sql = "SELECT submit('change', '{\"order\": 7}', '{\"ordering_key\": \"m\u00fc\"}')"
        assert (await headers(await connection.fetchval(by_sql))).ordering_key == "m\u00fc"
        rows = [row["key"] for row in await connection.fetch("SELECT ordering_key(headers) AS key FROM job")]
        assert set(rows) == {"order:7/all", "mine", "m\\303\\274"}, "the master's index has the same keys"
        assert (await headers(await mine.submit(plain, {"order": 7}, durability="master"))).ordering_key is None
    finally:
        await connection.close()


async def test_jobs_that_can_have_no_key_are_refused_and_nothing_is_stored(
    client: ClientFixture, open_cluster: OpenCluster
) -> None:
    connection = await client.connect()
    await published(client, connection)
    mine, others = await open_cluster(handlers=handlers), await open_cluster(handlers=Handlers())
    try:
        for cluster in (mine, others):
            with pytest.raises(InvalidArguments, match=r"handler 'change': the ordering key .* quote or a backslash"):
                await cluster.submit("change", {"order": 7, "part": '"'})
            with pytest.raises(BulkFailed, match="item 1: handler 'change'"):
                await cluster.submit_many([{"order": 7}, {"order": 7, "part": '"'}], "change")
        with pytest.raises(InputError, match="'recount': its ordering key is computed by a function"):
            await others.submit("recount", {"order": 7})
        with pytest.raises(InputError, match="needs a row in the master"):
            await mine.submit(change, {"order": 7}, durability="store")
        with pytest.raises(InputError, match="allows one run at a time"):
            await mine.submit(change, {"order": 7}, complete_time=5)
        with pytest.raises(BulkFailed, match="an ordering key and a unique key"):
            await mine.submit_many([{"order": 7}], both)
        with pytest.raises(InputError, match="results of other steps are not known yet"):
            await mine.workflows.start("two steps", chain(call(change, 7), call(change, previous)))
        for args, options, message in (
            ({"order": 7, "part": '"'}, {}, "quote or a backslash"),
            ({"order": 7}, {"complete_time": 5}, "allows one run at a time"),
            ({"order": 7}, {"ordering_key": 7}, "must be text"),
        ):
            with pytest.raises(asyncpg.PostgresError, match=message):
                await connection.fetchval("SELECT submit('change', $1, $2)", json.dumps(args), json.dumps(options))
        with pytest.raises(asyncpg.PostgresError, match="computed by a function"):
            await connection.fetchval("SELECT submit('recount', '{\"order\": 7}')")
        assert await client.rows() == {}
        assert await client.waiting() == {}
    finally:
        await connection.close()


class SlowInserts:
    """Inserts of a master, each slower than the next one; the calls that have begun and ended."""

    def __init__(self, master: Any, fails_at: int = 0) -> None:
        self._insert = master.intake.insert_held
        self.calls: list[list[bytes]] = []
        self.ended = 0
        self._fails_at = fails_at

    async def insert_held(self, jobs: Sequence[NewJob]) -> Written:
        assert self.ended == len(self.calls), "an insert has begun before the one before it has ended"
        self.calls.append([job.id for job in jobs])
        await asyncio.sleep(0.02 / len(self.calls))
        if len(self.calls) == self._fails_at:
            raise Unavailable("the master is away")
        written: Written = await self._insert(jobs)
        self.ended += 1
        return written


async def test_a_bulk_of_ordered_jobs_is_committed_in_the_order_of_its_items(
    client: ClientFixture, open_cluster: OpenCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later job that is seen before an earlier one of its key would start first."""
    await client.agent.open("payroll", 3)
    settings = msgspec.structs.replace(client.settings, thresholds=Thresholds(transfer_batch=4))
    cluster = await open_cluster(handlers=handlers, settings=settings)
    slow = SlowInserts(client.master)
    monkeypatch.setattr(client.master.intake, "insert_held", slow.insert_held)
    items = [call(recount, n) if n % 3 == 0 else call(change, n % 2) for n in range(30)]
    summary = await cluster.submit_many(items)
    sent = [job_id for ids in slow.calls for job_id in ids]
    assert len(sent) == summary.submitted == 30
    assert sent == sorted(sent)
    one_key = await cluster.submit_many([(plain, {"order": n}) for n in range(9)], ordering_key="imports")
    assert one_key.by_level == {Durability.MASTER: 9}


async def test_nothing_is_stored_after_an_ordered_job_that_failed(
    client: ClientFixture, open_cluster: OpenCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = msgspec.structs.replace(client.settings, thresholds=Thresholds(transfer_batch=4))
    cluster = await open_cluster(handlers=handlers, settings=settings)
    slow = SlowInserts(client.master, fails_at=2)
    monkeypatch.setattr(client.master.intake, "insert_held", slow.insert_held)
    with pytest.raises(BulkFailed) as failed:
        await cluster.submit_many([{"order": n} for n in range(16)], change)
    stored = await client.rows()
    assert set(failed.value.summary.ids.as_bytes()) == set(stored) == set(slow.calls[0])
    assert len(slow.calls) == 2
    assert failed.value.summary.submitted + failed.value.unsent <= 16
