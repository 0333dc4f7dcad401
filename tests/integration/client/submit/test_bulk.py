"""Many jobs at once: everything arrives, memory is bounded, and a failure says exactly what became of whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

from jobmaster.client import bulk, submitter
from jobmaster.client.bulk import CHUNKS_MAX, BulkFailed
from jobmaster.clock import new_id
from jobmaster.codec import ID_AT, decode_json
from jobmaster.handlers import Call, Handlers, call
from jobmaster.model.errors import (
    BucketsFull,
    ClockSkew,
    InputError,
    InvalidArguments,
    OutcomeUnknown,
    UnknownHandler,
    Unserved,
)
from jobmaster.model.job import Durability, JobState
from jobmaster.settings.model import JobDefaults, Limits
from tests.integration.client.conftest import OpenCluster
from tests.integration.client.fixture import ClientFixture, pay, resize


def undeclared(number: int) -> None:
    """A function that is declared as no handler."""


async def test_every_item_of_an_iterable_arrives_once(client: ClientFixture) -> None:
    summary = await client.cluster.submit_many(({"path": str(i)} for i in range(5000)), resize)
    assert summary.submitted == 5000
    assert summary.by_level == {Durability.STORE: 5000}
    waiting = await client.waiting()
    assert waiting.keys() == set(summary.ids.as_bytes())
    assert {entry.args for entry in waiting.values()} == {b'{"path":"%d"}' % i for i in range(5000)}


async def test_pairs_of_several_handlers_go_to_their_lanes(client: ClientFixture) -> None:
    await client.agent.open("payroll", 4)

    async def items() -> AsyncIterator[tuple[Any, Any]]:
        for i in range(30):
            yield (resize, {"path": str(i)}) if i % 3 else (pay, {"employee": i})

    summary = await client.cluster.submit_many(items(), tags=["bulk"])
    assert summary.submitted == 30
    lanes = dict.fromkeys(client.agent.buckets, 0)
    for key, buckets in client.agent.buckets.items():
        for bucket in buckets:
            lanes[key] += len((await client.agent.claim(bucket))[1])
    assert lanes == {("default", 3): 20, ("payroll", 4): 10}


async def test_calls_of_several_handlers_go_to_their_lanes(client: ClientFixture) -> None:
    await client.agent.open("payroll", 4)
    calls = [call(resize, str(i)) if i % 3 else call(pay, i) for i in range(30)]
    calls.append(call("images.resize", path="by name", width=5))
    summary = await client.cluster.submit_many(calls, metadata={"bulk": "yes"})
    assert (summary.submitted, summary.by_level) == (31, {Durability.STORE: 31})
    waiting = await client.waiting()
    assert waiting.keys() == set(summary.ids.as_bytes())
    sent = sorted((entry.handler, str(decode_json(entry.args))) for entry in waiting.values())
    assert sent == sorted(
        [("pay", str({"employee": i})) for i in range(0, 30, 3)]
        + [("images.resize", str({"path": str(i)})) for i in range(30) if i % 3]
        + [("images.resize", str({"path": "by name", "width": 5}))]
    )
    assert {entry.headers for entry in waiting.values()} == {b'{"metadata":{"bulk":"yes"}}'}


@pytest.mark.parametrize("named", [True, False])
async def test_a_bulk_that_no_bucket_serves_is_refused(client: ClientFixture, named: bool) -> None:
    submit_many = client.cluster.submit_many
    paths = [{"path": str(i)} for i in range(3)]
    items, handler = (paths, resize) if named else ([(resize, args) for args in paths], None)
    with pytest.raises(BulkFailed, match=r"default/very_low for the handler 'images\.resize'") as caught:
        await submit_many(items, handler, priority="very_low", on_unserved="raise")
    assert isinstance(caught.value.__cause__, Unserved)
    assert (caught.value.summary.submitted, len(caught.value.unknown_ids)) == (0, 0)
    assert await client.rows() == {}
    held = await submit_many(items, handler, priority="very_low", on_unserved="hold")
    assert held.by_level == {Durability.MASTER: 3}
    assert (await submit_many(items, handler, on_unserved="raise")).by_level == {Durability.STORE: 3}


async def test_a_bulk_stops_at_the_first_handler_that_no_bucket_serves(client: ClientFixture) -> None:
    items: list[Any] = [call(resize, "a"), call(resize, "b"), call(pay, 1), call(resize, "c")]
    with pytest.raises(BulkFailed, match="no bucket serves payroll/high for the handler 'pay'") as caught:
        await client.cluster.submit_many(items, on_unserved="raise")
    stored = caught.value.summary.submitted + caught.value.unsent
    assert stored == 2, "those before it, and neither it nor those after it"
    await client.agent.open("payroll", 4)
    assert len(await client.waiting()) == caught.value.summary.submitted
    wrong: Any = {"on_unserved": "sink"}
    with pytest.raises(InputError, match="'on_unserved' must be 'hold' or 'raise'"):
        await client.cluster.submit_many(items, **wrong)


async def test_held_and_durable_bulk_is_rows(client: ClientFixture) -> None:
    later = await client.cluster.submit_many([{"path": "a"}] * 2500, resize, after=3600)
    durable = await client.cluster.submit_many([{"path": "b"}] * 1500, resize, durability="master")
    unserved = await client.cluster.submit_many([{"employee": 1}] * 10, pay)
    for summary in (later, durable, unserved):
        assert set(summary.by_level) == {Durability.MASTER}
    rows = await client.rows()
    assert {rows[job_id] for job_id in later.ids.as_bytes()} == {"HELD"}
    assert {rows[job_id] for job_id in durable.ids.as_bytes()} == {"ASSIGNED"}
    assert len(rows) == 4010
    assert (await client.waiting()).keys() == set(durable.ids.as_bytes())


async def test_the_input_is_read_only_as_fast_as_the_stores_take_it(client: ClientFixture) -> None:
    read = 0

    def items() -> Iterator[dict[str, str]]:
        nonlocal read
        for i in range(20_000):
            read += 1
            yield {"path": str(i)}

    held = asyncio.Event()
    submit = client.store.submit

    async def slow(*args: Any, **options: Any) -> Any:
        await held.wait()
        return await submit(*args, **options)

    client.store.submit = slow  # type: ignore[method-assign]  # passes on, when it may
    task = asyncio.create_task(client.cluster.submit_many(items(), resize))
    seen = -1
    while read != seen or not read:  # until it stands still
        seen = read
        for _ in range(50):
            await asyncio.sleep(0)
    assert read == (CHUNKS_MAX + 1) * client.settings.limits.submit_chunk_jobs
    held.set()
    assert (await task).submitted == 20_000


@pytest.mark.parametrize(
    ("items", "handler", "cause", "words", "unsent"),
    [
        ([{"path": "a"}, {"path": 3}], "images.resize", InvalidArguments, "item 1: .*argument 'path': expected str", 1),
        ([("images.resize", {"path": "a"}), "oops"], None, InputError, r"item 1 is no call and no \(handler, argu", 1),
        ([("nobody", {})], None, UnknownHandler, "item 0: there is no handler 'nobody'", 0),
        (
            [call(pay, 7), Call(resize, {"path": 3})],
            None,
            InvalidArguments,
            "item 1: .*argument 'path': expected str",
            1,
        ),
        (
            [call(resize, "a"), call(undeclared, 3)],
            None,
            InputError,
            "item 1: 'undeclared' is not declared as a handler",
            1,
        ),
        ([call(resize, "a"), call("nobody")], None, UnknownHandler, "item 1: there is no handler 'nobody'", 1),
        ([call(resize, "a")], "images.resize", InputError, "item 0 is a call, and a handler is named for every", 0),
        (resize, [{"path": "a"}] * 20_000, InputError, "^.{0,80}the handler is of type list, and neither.{0,300}$", 0),
    ],
)
async def test_a_bad_item_is_named(
    client: ClientFixture, items: list[Any], handler: str | None, cause: type[Exception], words: str, unsent: int
) -> None:
    with pytest.raises(BulkFailed, match=words) as caught:
        await client.cluster.submit_many(items, handler)
    assert isinstance(caught.value.__cause__, cause)
    assert caught.value.unsent == unsent
    assert (await client.waiting()).keys() == set(caught.value.summary.ids.as_bytes())


async def test_names_without_code_go_in_bulk_too(client: ClientFixture, open_cluster: OpenCluster) -> None:
    cluster = await open_cluster(handlers=Handlers())
    summary = await cluster.submit_many(({"path": str(i)} for i in range(50)), "images.resize")
    assert summary.submitted == 50
    with pytest.raises(BulkFailed, match=r"item 3: .*missing argument 'path'"):
        await cluster.submit_many([{"path": "a"}] * 3 + [{}], "images.resize")


async def test_every_job_of_a_failed_bulk_is_acknowledged_unknown_or_not_stored(client: ClientFixture) -> None:
    submit = client.store.submit
    calls = 0

    async def third_time_lost(bucket_id: bytes, items: Any, **options: Any) -> Any:
        # What a broken connection does: the third chunk is stored, its answer is lost, and so are those of the tries
        # that follow.
        nonlocal calls
        calls += 1
        call = calls
        answer = await submit(bucket_id, items, **options)
        if call >= 3:
            raise OutcomeUnknown("the answer was lost", id_bytes=[item[ID_AT] for item in items])
        return answer

    client.store.submit = third_time_lost  # type: ignore[method-assign]
    read: list[int] = []

    def items() -> Iterator[dict[str, str]]:
        for i in range(50_000):
            read.append(i)
            yield {"path": str(i)}

    with pytest.raises(BulkFailed) as caught:
        await client.cluster.submit_many(items(), resize)
    failed = caught.value
    assert isinstance(failed.__cause__, OutcomeUnknown)
    assert failed.summary.submitted + len(failed.unknown_ids) + failed.unsent == len(read)
    waiting = await client.waiting()
    acknowledged, unknown = set(failed.summary.ids.as_bytes()), set(failed.unknown_ids.as_bytes())
    assert acknowledged
    assert unknown
    # A chunk that finds every bucket avoided, because a call to it failed a moment ago, becomes rows.
    rows = await client.master.queries.states(list(acknowledged - waiting.keys()))
    assert acknowledged <= waiting.keys() | rows.keys()
    assert waiting.keys() <= acknowledged | unknown


async def test_full_buckets_stop_spill_or_slow_a_bulk(client: ClientFixture, open_cluster: OpenCluster) -> None:
    stores = {"default": msgspec.structs.replace(client.settings.stores["default"], high_water_jobs=1000)}
    settings = msgspec.structs.replace(
        client.settings,
        stores=stores,
        limits=Limits(submit_chunk_jobs=100),
        jobs=JobDefaults(on_full_timeout_seconds=20.0),
    )
    cluster = await open_cluster(settings=settings)
    with pytest.raises(BulkFailed) as caught:
        await cluster.submit_many([{"path": "a"}] * 5000, resize, on_full="raise")
    assert isinstance(caught.value.__cause__, BucketsFull)
    assert caught.value.summary.submitted == 2000
    spilled = await cluster.submit_many([{"path": "b"}] * 500, resize, on_full="spill")
    assert spilled.by_level == {Durability.MASTER: 500}
    blocked = asyncio.create_task(cluster.submit_many([{"path": "c"}] * 1500, resize))
    done = 0
    while done < 3500:
        done += await client.agent.work_off(result=b'{"width":1,"height":1}')
        await asyncio.sleep(0)
    assert (await blocked).by_level == {Durability.STORE: 1500}
    states = list((await client.rows()).values())
    assert states.count(JobState.SUCCEEDED.value) == 3500


async def test_options_of_a_single_job_are_refused(client: ClientFixture) -> None:
    with pytest.raises(InputError, match="belong to one job"):
        await client.cluster.submit_many([{"path": "a"}], resize, idempotency_key="k")  # type: ignore[call-arg]


async def test_ids_that_the_master_refuses_are_never_acknowledged(
    client: ClientFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A producer whose clock runs two years ahead, and jobs that no store has looked at first.
    def from_the_future() -> bytes:
        made = new_id()
        return (int.from_bytes(made[:6], "big") + 63_072_000_000).to_bytes(6, "big") + made[6:]

    monkeypatch.setattr(bulk, "new_id", from_the_future)
    monkeypatch.setattr(submitter, "new_id", from_the_future)
    for options in ({"after": 3600}, {"durability": "master"}):
        given: Any = options
        with pytest.raises(BulkFailed, match="outside the master's partitions") as caught:
            await client.cluster.submit_many([{"path": "a"}] * 3, resize, **given)
        assert (caught.value.summary.submitted, len(caught.value.unknown_ids), caught.value.unsent) == (0, 0, 3)
        with pytest.raises(InputError, match="outside its partitions"):
            await client.cluster.submit(resize, {"path": "a"}, **given)
    with pytest.raises(ClockSkew):
        await client.cluster.submit(resize, {"path": "a"})
    assert await client.rows() == {}
    assert await client.waiting() == {}
