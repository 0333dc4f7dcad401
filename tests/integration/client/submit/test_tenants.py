"""Jobs of tenants: beyond the window of a bucket they wait in the master, whatever happens to other jobs."""

from __future__ import annotations

import json

import msgspec
import pytest

from jobmaster import Handlers, call, chain, step
from jobmaster.model.errors import InputError
from jobmaster.model.job import Durability, Headers
from jobmaster.settings.model import Tenants
from tests.integration.client.conftest import OpenCluster
from tests.integration.client.fixture import ClientFixture, resize


async def test_what_is_beyond_the_window_of_the_buckets_waits_in_the_master(
    client: ClientFixture, open_cluster: OpenCluster
) -> None:
    buckets = len(client.agent.buckets["default", 3])
    settings = msgspec.structs.replace(client.settings, tenants=Tenants(weights={"acme": 3}, window=4))
    cluster = await open_cluster(settings=settings)
    level: dict[Durability, int] = {}
    for number in range(4 * buckets + 6):
        receipt = await cluster.submit(resize, {"path": str(number)}, tenant="acme", on_full="raise")
        level[receipt.level] = level.get(receipt.level, 0) + 1
    assert level[Durability.STORE] <= 4 * buckets
    assert level[Durability.MASTER] >= 6
    plain = await cluster.submit(resize, {"path": "plain"}, on_full="raise")
    assert plain.level is Durability.STORE, "other jobs have the whole bucket"
    more = await cluster.submit_many(({"path": str(n)} for n in range(20)), resize, tenant="zoo", on_full="raise")
    assert more.by_level == {Durability.MASTER: 20}
    certain = await cluster.submit(resize, {"path": "certain"}, tenant="zoo", durability="master")
    assert certain.bucket_id is None
    found = {each.name: each for each in await cluster.tenants.list()}
    assert (found["acme"].held, found["acme"].weight) == (level[Durability.MASTER], 3)
    assert (found["zoo"].held, found["zoo"].weight, found["zoo"].lane) == (21, 1, "default")
    assert await cluster.tenants.list(lane="payroll") == []
    assert [each.name for each in await cluster.tenants.list(limit=1)] == ["zoo"]


async def test_a_tenant_is_kept_with_the_job_and_by_its_retry(client: ClientFixture) -> None:
    receipt = await client.cluster.submit(resize, {"path": "a"}, tenant="acme", after=60.0)
    view = await client.cluster.get(receipt)
    assert view is not None
    assert view.headers.tenant == ("acme",)
    await client.cluster.cancel(receipt)
    again = await client.cluster.retry(receipt)
    view = await client.cluster.get(again)
    assert view is not None
    assert view.headers.tenant == ("acme",)


@pytest.mark.parametrize("bad", ["", "a b", 'a"b', "x" * 101, 3])
async def test_a_bad_tenant_is_refused_and_nothing_is_stored(client: ClientFixture, bad: str) -> None:
    with pytest.raises(InputError, match="is not the name of a tenant"):
        await client.cluster.submit(resize, {"path": "a"}, tenant=bad)
    assert await client.rows() == {}
    assert await client.waiting() == {}


@pytest.mark.parametrize("bad", [{"limit": 0}, {"limit": 10_001}, {"limit": True}, {"lane": "No lane"}])
async def test_a_bad_question_is_refused(client: ClientFixture, bad: dict[str, object]) -> None:
    with pytest.raises(InputError):
        await client.cluster.tenants.list(**bad)  # type: ignore[arg-type]  # that is the test


declaring = Handlers()


@declaring.job(name="images.resize", tenant="acme")
async def of_acme(path: str) -> None: ...


async def tenants_of(client: ClientFixture) -> dict[str, list[str]]:
    """Path of each job with a row -> its tenant."""
    connection = await client.connect()
    try:
        rows = await connection.fetch("SELECT args, headers FROM job")
    finally:
        await connection.close()
    return {json.loads(row["args"])["path"]: list(_headers(row["headers"]).tenant or ()) for row in rows}


def _headers(data: bytes) -> Headers:
    return msgspec.json.decode(data, type=Headers) if data else Headers()


async def test_the_tenant_of_a_handler_is_that_of_its_jobs_unless_the_submit_names_one(
    client: ClientFixture, open_cluster: OpenCluster
) -> None:
    await client.agent.start(declaring)  # publishes the handler
    with_code = await open_cluster(handlers=declaring)
    without = await open_cluster(handlers=Handlers())
    for cluster, handler, who in ((with_code, of_acme, "a"), (without, "images.resize", "b")):
        await cluster.submit(handler, {"path": f"{who} plain"}, durability="master")
        await cluster.submit(handler, {"path": f"{who} other"}, tenant="zoo", durability="master")
        await cluster.submit_many([{"path": f"{who} many"}], handler, durability="master")
        await cluster.submit_many([{"path": f"{who} many other"}], handler, tenant="zoo", durability="master")
        await cluster.workflows.start("w", chain(call(handler, path=f"{who} step")))
        await cluster.workflows.start("w", step(call(handler, path=f"{who} step other"), tenant="zoo"))
    connection = await client.connect()
    try:
        for args, options in (({"path": "sql"}, {}), ({"path": "sql other"}, {"tenant": "zoo"})):
            await connection.execute("SELECT submit('images.resize', $1, $2)", json.dumps(args), json.dumps(options))
        async with connection.transaction():
            await with_code.submit(of_acme, {"path": "joined"}, connection=connection)
        text, values = with_code.statement(of_acme, {"path": "called"}, paramstyle="numeric")
        await connection.execute(text, *values)
    finally:
        await connection.close()
    found = await tenants_of(client)
    assert found == {path: ["zoo" if path.endswith("other") else "acme"] for path in found}
    assert len(found) == 16


async def test_a_schedule_fires_for_its_tenant_and_for_that_of_its_handler_otherwise(
    client: ClientFixture, open_cluster: OpenCluster
) -> None:
    await client.agent.start(declaring)
    cluster = await open_cluster(handlers=Handlers())
    own = await cluster.schedules.put("own", "5m", "images.resize", {"path": "own"}, tenant="zoo")
    default = await cluster.schedules.put("default", "5m", "images.resize", {"path": "default"})
    assert (own.tenant, default.tenant) == ("zoo", "acme")
    for name in ("own", "default"):
        await cluster.schedules.run(name)
    assert await tenants_of(client) == {"own": ["zoo"], "default": ["acme"]}
    with pytest.raises(InputError, match="schedule 'bad': 'a b' is not the name of a tenant"):
        await cluster.schedules.put("bad", "5m", "images.resize", {"path": "a"}, tenant="a b")
