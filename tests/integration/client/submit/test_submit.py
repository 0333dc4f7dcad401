"""Submitting to a real cluster: where jobs land, what receipts say, and every kind of bad input."""

from __future__ import annotations

import asyncio
import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from jobmaster.client import handler_lookup
from jobmaster.client.bulk import BulkFailed
from jobmaster.client.cluster import Cluster
from jobmaster.client.idempotency_keys import digest
from jobmaster.client.receipts import JobReceipt
from jobmaster.clock import new_id
from jobmaster.codec import decode_headers, decode_json
from jobmaster.handlers import Handlers
from jobmaster.model.errors import (
    BucketsFull,
    ClockSkew,
    Conflict,
    DurabilityRefused,
    InputError,
    InvalidArguments,
    InvalidDueTime,
    UnknownHandler,
    UnknownLane,
    Unserved,
)
from jobmaster.model.ids import text
from jobmaster.model.job import Durability, JobState
from jobmaster.settings.loader import load_settings
from jobmaster.settings.model import JobDefaults, Limits
from tests.integration.client.conftest import OpenCluster
from tests.integration.client.fixture import ClientFixture, DrivenAgent, pay, resize
from tests.support.cases import about


async def test_a_plain_submit_waits_in_a_bucket_and_the_master_has_not_seen_it(client: ClientFixture) -> None:
    receipt = await client.cluster.submit(resize, {"path": "a.png", "width": 3})
    assert receipt.level is Durability.STORE
    assert receipt.bucket_id in {bucket.id for bucket in client.agent.buckets["default", 3]}
    assert await client.rows() == {}
    entry = (await client.waiting())[receipt.id_bytes]
    assert (entry.handler, entry.token, entry.due_us) == ("images.resize", 1, 0)
    assert decode_json(entry.args) == {"path": "a.png", "width": 3}


async def test_the_short_way_and_the_long_way_write_the_same(client: ClientFixture) -> None:
    first = await client.cluster.submit(resize, {"path": "a"})
    second = await client.cluster.submit("images.resize", {"path": "a"})
    third = await client.cluster.submit(resize, {"path": "a"}, priority="medium")
    entries = await client.waiting()
    forms = {
        entries[one.id_bytes].__class__(bytes(16), *_tail(entries[one.id_bytes])) for one in (first, second, third)
    }
    assert len(forms) == 1


def _tail(entry: Any) -> tuple[Any, ...]:
    return (entry.token, entry.handler, entry.args, entry.due_us, entry.headers, entry.attempt, entry.rescues)


async def test_concurrent_submits_share_calls_and_all_arrive(client: ClientFixture) -> None:
    await client.cluster.submit(resize, {"path": "first"})
    calls = 0
    submit = client.store.submit

    async def counted(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return await submit(*args, **options)

    client.store.submit = counted  # type: ignore[method-assign]  # counts, and passes on
    receipts = await asyncio.gather(*(client.cluster.submit(resize, {"path": str(i)}) for i in range(500)))
    assert calls <= 3
    assert {receipt.id_bytes for receipt in receipts} <= (await client.waiting()).keys()


async def test_options_travel_with_the_job(client: ClientFixture) -> None:
    receipt = await client.cluster.submit(
        resize, {"path": "a"}, tags=["x"], metadata={"k": "v"}, timeout=9, max_attempts=2
    )
    headers = decode_headers((await client.waiting())[receipt.id_bytes].headers)
    assert (headers.tags, headers.metadata, headers.timeout_seconds, headers.max_attempts) == (
        ("x",),
        {"k": "v"},
        9.0,
        2,
    )


async def test_lane_and_priority_come_from_the_submit_then_the_handler_then_the_defaults(client: ClientFixture) -> None:
    payroll = (await client.agent.open("payroll", 4))[0]
    critical = (await client.agent.open("default", 5))[0]
    low = (await client.agent.open("payroll", 2))[0]
    assert (await client.cluster.submit(pay, {"employee": 1})).bucket_id == payroll.id
    assert (await client.cluster.submit(resize, {"path": "a"}, priority="critical")).bucket_id == critical.id
    assert (await client.cluster.submit(pay, {"employee": 1}, priority=2)).bucket_id == low.id


async def test_far_due_and_durable_and_unserved_jobs_are_held_by_the_master(client: ClientFixture) -> None:
    far = await client.cluster.submit(resize, {"path": "a"}, after=timedelta(hours=1))
    durable = await client.cluster.submit(resize, {"path": "a"}, durability="master", after=2)
    unserved = await client.cluster.submit(pay, {"employee": 1})
    for receipt in (far, durable, unserved):
        assert (receipt.level, receipt.bucket_id) == (Durability.MASTER, None)
    assert set((await client.rows()).values()) == {"HELD"}
    assert len(await client.rows()) == 3
    assert await client.waiting() == {}


async def test_a_job_due_within_the_threshold_goes_into_a_bucket_with_its_time(client: ClientFixture) -> None:
    when = datetime.now(tz=UTC) + timedelta(seconds=200)
    receipt = await client.cluster.submit(resize, {"path": "a"}, at=when)
    assert receipt.level is Durability.STORE
    assert (await client.waiting())[receipt.id_bytes].due_us == int(when.timestamp() * 1_000_000)


async def test_a_master_submit_due_now_is_a_row_and_a_copy_with_token_two(client: ClientFixture) -> None:
    receipt = await client.cluster.submit(resize, {"path": "a"}, durability="master")
    assert receipt.level is Durability.MASTER
    assert receipt.bucket_id is not None
    assert await client.rows() == {receipt.id_bytes: "ASSIGNED"}
    assert (await client.waiting())[receipt.id_bytes].token == 2


async def test_a_due_time_in_the_past_means_now(client: ClientFixture) -> None:
    receipt = await client.cluster.submit(resize, {"path": "a"}, at=datetime(2020, 1, 1, tzinfo=UTC))
    assert (await client.waiting())[receipt.id_bytes].due_us == 0


# ---------------------------------------------------------------- bad input


BAD: list[tuple[Any, ...]] = [
    ("images.resise", {}, {}, UnknownHandler, "no handler 'images.resise'.*did you mean 'images.resize'"),
    ("", {}, {}, InputError, "name is empty"),
    ("a\0b", {}, {}, InputError, r"U\+0000"),
    (len, {}, {}, UnknownHandler, "'len' is not declared as a handler"),
    (resize, {}, {}, InvalidArguments, "missing argument 'path'"),
    (resize, {"path": 1}, {}, InvalidArguments, "argument 'path': expected str, got int"),
    (resize, {"path": "a", "widht": 1}, {}, InvalidArguments, r"unknown argument 'widht' \(did you mean 'width'"),
    (resize, {"path": math.nan}, {}, InvalidArguments, "argument 'path' is nan"),
    (resize, {"path": "\ud800"}, {}, InvalidArguments, "argument 'path'.*surrogate"),
    (resize, {"path": object()}, {}, InvalidArguments, "argument 'path' cannot be encoded"),
    (resize, {"path": "x" * 200_000}, {}, InvalidArguments, r"have 200011 bytes, the limit is 131072"),
    (resize, ["a"], {}, InvalidArguments, "must be a mapping of names to values, not list"),
    (resize, "", {}, InvalidArguments, "must be a mapping"),
    (resize, {3: "a"}, {}, InvalidArguments, "unknown argument '3'"),
    (resize, {"path": "a"}, {"lane": "nobody"}, UnknownLane, "no agent serves lane 'nobody'.*default, payroll"),
    (resize, {"path": "a"}, {"priority": "urgent"}, InputError, "valid are very_low"),
    (resize, {"path": "a"}, {"at": datetime(2026, 1, 1)}, InvalidDueTime, "naive"),  # noqa: DTZ001
    (resize, {"path": "a"}, {"after": timedelta(days=3661)}, InvalidDueTime, "3661 days ahead, the limit is 3660"),
    (resize, {"path": "a"}, {"job_id": bytes(16)}, InputError, "not a UUIDv7"),
    (resize, {"path": "a"}, {"width": 3}, InputError, "no option 'width'.*one mapping"),
    (resize, {"path": "a"}, {"durability": "store_fsync"}, DurabilityRefused, "CONFIG SET appendfsync always"),
]


async def test_bad_input_is_one_clear_error_and_stores_nothing(client: ClientFixture) -> None:
    for _ in range(2):  # the second time everything is cached
        for handler, args, options, error, words in BAD:
            with about(words), pytest.raises(error, match=words):
                await client.cluster.submit(handler, args, **options)
    assert await client.rows() == {}
    assert await client.waiting() == {}


async def test_nul_inside_an_argument_is_allowed_and_arrives(client: ClientFixture) -> None:
    durable = await client.cluster.submit(resize, {"path": "a\0b"}, after=3600)
    quick = await client.cluster.submit(resize, {"path": "a\0b"})
    assert decode_json((await client.waiting())[quick.id_bytes].args) == {"path": "a\0b"}
    view = await client.master.queries.get(durable.id_bytes)
    assert view is not None
    assert view.arguments == {"path": "a\0b"}


# ---------------------------------------------------------------- names without code


async def test_a_producer_without_the_code_submits_by_name_against_what_agents_published(
    client: ClientFixture, open_cluster: OpenCluster
) -> None:
    cluster = await open_cluster(handlers=Handlers())
    receipt = await cluster.submit("images.resize", {"path": "a"})
    assert receipt.id_bytes in await client.waiting()
    with pytest.raises(InvalidArguments, match=r"missing argument 'path'.*it takes \(path, width=\.\.\.\)"):
        await cluster.submit("images.resize", {})
    with pytest.raises(UnknownHandler, match=r"did you mean 'images\.resize'"):
        await cluster.submit("images.resizer", {})
    payroll = (await client.agent.open("payroll", 4))[0]
    assert (await cluster.submit("pay", {"employee": 3}, lane="payroll")).level in (Durability.STORE, Durability.MASTER)
    assert (await open_cluster(handlers=Handlers())) is not cluster
    fresh = await open_cluster(handlers=Handlers())
    assert (await fresh.submit("pay", {"employee": 3})).bucket_id == payroll.id


async def test_a_producer_reads_a_redeployed_signature_when_its_cached_one_refuses(
    client: ClientFixture, open_cluster: OpenCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler_lookup, "REREAD_SECONDS", 3600.0)
    cluster = await open_cluster(handlers=Handlers())
    await cluster.submit("images.resize", {"path": "a"})
    redeployed = Handlers()

    @redeployed.job(name="images.resize")
    async def resize_to(path: str, form: str) -> None: ...

    await DrivenAgent(client.master, client.store, "default").start(redeployed)
    with pytest.raises(InvalidArguments, match="unknown argument 'form'"):
        await cluster.submit("images.resize", {"path": "a", "form": "png"})
    monkeypatch.setattr(handler_lookup, "REREAD_SECONDS", -1.0)
    receipt = await cluster.submit("images.resize", {"path": "a", "form": "png"})
    assert receipt.id_bytes in await client.waiting()


async def test_an_unregistered_name_is_accepted_only_when_asked_for(client: ClientFixture) -> None:
    with pytest.raises(UnknownHandler, match="allow_unregistered"):
        await client.cluster.submit("tomorrow.handler", {"x": 1})
    receipt = await client.cluster.submit("tomorrow.handler", {"x": 1}, allow_unregistered=True)
    assert (await client.waiting())[receipt.id_bytes].handler == "tomorrow.handler"


# ---------------------------------------------------------------- ids and keys


async def test_the_same_id_again_is_the_same_job_and_another_payload_is_a_conflict(client: ClientFixture) -> None:
    job_id = new_id()
    first = await client.cluster.submit(resize, {"path": "a"}, job_id=job_id, after=3600)
    again = await client.cluster.submit(resize, {"path": "a"}, job_id=text(job_id), after=3600)
    assert (first.id_bytes, first.duplicate) == (job_id, False)
    assert (again.id_bytes, again.duplicate) == (job_id, True)
    with pytest.raises(Conflict, match=r"exists already, for handler 'images.resize' with other arguments"):
        await client.cluster.submit(resize, {"path": "b"}, job_id=job_id, after=3600)
    assert list(await client.rows()) == [job_id]


@pytest.mark.parametrize("first", ["store", "master"])
@pytest.mark.parametrize("then", ["store", "master"])
async def test_an_id_in_a_bucket_is_the_same_job_and_another_payload_is_a_conflict(
    client: ClientFixture, first: Any, then: Any
) -> None:
    """Whatever is promised the first time and asked for the second: one row or one copy to run, or a Conflict."""
    job_id, submit = new_id(), client.cluster.submit
    was = await submit(resize, {"path": "a", "width": 1}, job_id=job_id, durability=first)
    again = await submit(resize, {"width": 1, "path": "a"}, job_id=job_id, durability=then)
    assert (was.id_bytes, again.id_bytes) == (job_id, job_id)
    assert again.level is (Durability.MASTER if "master" in (first, then) else Durability.STORE)
    assert again.duplicate is (first == "master" or then == "store")
    for wrong, args in ((resize, {"path": "b"}), (pay, {"employee": 3})):
        with pytest.raises(Conflict, match=r"exists already, for handler 'images\.resize'"):
            await submit(wrong, args, job_id=job_id, durability=then)
    copies = [entry for entry in (await client.waiting()).values() if entry.id == job_id]
    assert len(copies) <= 1
    assert {decode_json(entry.args)["path"] for entry in copies} <= {"a"}  # type: ignore[index]


async def test_an_id_of_another_time_is_refused(client: ClientFixture) -> None:
    old = (int.from_bytes(new_id()[:6], "big") - 4_000_000).to_bytes(6, "big") + new_id()[6:]
    with pytest.raises(ClockSkew, match=r"-40\d\d s off"):
        await client.cluster.submit(resize, {"path": "a"}, job_id=old)


async def test_a_key_names_one_job_for_any_number_of_submits_and_clients(
    client: ClientFixture, open_cluster: OpenCluster
) -> None:
    other = await open_cluster()
    receipts: list[JobReceipt[Any]] = await asyncio.gather(
        *(
            cluster.submit(resize, {"path": "a", "width": 1}, idempotency_key="order-7")
            for cluster in (client.cluster, other) * 10
        )
    )
    assert len({receipt.id_bytes for receipt in receipts}) == 1
    assert {receipt.level for receipt in receipts} == {Durability.MASTER}
    assert len(await client.rows()) == 1
    late = await client.cluster.submit(resize, {"width": 1, "path": "a"}, idempotency_key="order-7")
    assert (late.id_bytes, late.duplicate) == (receipts[0].id_bytes, True)
    assert len(await client.waiting()) == 1


async def test_a_key_with_another_payload_is_a_conflict_and_another_handler_has_keys_of_its_own(
    client: ClientFixture,
) -> None:
    first = await client.cluster.submit(resize, {"path": "a"}, idempotency_key="k")
    with pytest.raises(Conflict, match=f"'k' of handler 'images.resize' belongs to job {first}"):
        await client.cluster.submit(resize, {"path": "b"}, idempotency_key="k")
    other = await client.cluster.submit(pay, {"employee": 1}, idempotency_key="k")
    assert other.id_bytes != first.id_bytes


async def test_a_key_whose_producer_died_before_its_job_was_written_is_not_lost(client: ClientFixture) -> None:
    orphan = new_id()
    await client.master.intake.reserve_keys("images.resize", [("k", orphan, digest("images.resize", b'{"path":"a"}'))])
    receipt = await client.cluster.submit(resize, {"path": "a"}, idempotency_key="k")
    assert (receipt.id_bytes, receipt.duplicate) == (orphan, True)
    assert orphan in await client.rows()


async def test_a_key_of_a_finished_job_does_not_run_it_again(client: ClientFixture) -> None:
    first = await client.cluster.submit(resize, {"path": "a"}, idempotency_key="k")
    assert await client.agent.work_off(result=b'{"width":1,"height":1}') == 1
    again = await client.cluster.submit(resize, {"path": "a"}, idempotency_key="k")
    assert (again.id_bytes, again.duplicate) == (first.id_bytes, True)
    assert await client.waiting() == {}
    assert await client.rows() == {first.id_bytes: JobState.SUCCEEDED.value}


# ---------------------------------------------------------------- no room


async def hasty(client: ClientFixture, open_cluster: OpenCluster, on_full_timeout_seconds: float) -> Cluster:
    """A producer for whom a bucket is full with ten jobs."""
    stores = {"default": msgspec.structs.replace(client.settings.stores["default"], high_water_jobs=10)}
    defaults = JobDefaults(on_full_timeout_seconds=on_full_timeout_seconds)
    settings = msgspec.structs.replace(
        client.settings, stores=stores, jobs=defaults, limits=Limits(submit_chunk_jobs=5)
    )
    return await open_cluster(settings=settings)


async def test_jobs_at_level_master_that_find_full_buckets_wait_in_the_master(
    client: ClientFixture, open_cluster: OpenCluster
) -> None:
    """Their rows are committed either way, so nothing has to be refused or to wait."""
    cluster = await hasty(client, open_cluster, 30.0)
    receipts = []
    for policy in ("block", "raise") * 10:
        some = (cluster.submit(resize, {"path": "a"}, durability="master", on_full=policy) for _ in range(4))
        receipts += await asyncio.gather(*some)
    assert {receipt.level for receipt in receipts} == {"master"}
    rows, waiting = await client.rows(), await client.waiting()
    assert set(rows) == {receipt.id_bytes for receipt in receipts}
    assert {job_id for job_id, state in rows.items() if state == "ASSIGNED"} == set(waiting), "no row without a copy"
    assert 0 < len(waiting) <= 20, "ten in each of two buckets"
    assert {state for job_id, state in rows.items() if job_id not in waiting} == {"HELD"}


async def test_full_buckets_raise_or_spill_or_block_as_asked(client: ClientFixture, open_cluster: OpenCluster) -> None:
    cluster = await hasty(client, open_cluster, 0.3)
    patient = await hasty(client, open_cluster, 60.0)
    receipts = await asyncio.gather(
        *(cluster.submit(resize, {"path": "a"}, on_full="raise") for _ in range(30)), return_exceptions=True
    )
    assert sum(isinstance(receipt, JobReceipt) for receipt in receipts) == 20
    assert sum(isinstance(receipt, BucketsFull) for receipt in receipts) == 10
    with pytest.raises(BucketsFull, match=r"over its high-water mark.*on_full='spill'"):
        await cluster.submit(resize, {"path": "a"}, on_full="raise")
    with pytest.raises(BucketsFull, match=r"for 0\.3 s"):
        await cluster.submit(resize, {"path": "a"})
    assert await client.rows() == {}
    spilled = await cluster.submit(resize, {"path": "a"}, on_full="spill")
    assert spilled.level is Durability.MASTER
    assert await client.rows() == {spilled.id_bytes: "HELD"}
    blocked = asyncio.create_task(patient.submit(resize, {"path": "a"}))
    await asyncio.sleep(0)
    made_room = await client.waiting()
    receipt = await blocked
    assert receipt.level is Durability.STORE
    assert (made_room | await client.waiting()).keys() == {
        *(one.id_bytes for one in receipts if isinstance(one, JobReceipt)),
        receipt.id_bytes,
    }


async def test_a_closed_bucket_sends_jobs_to_its_neighbour_and_then_to_the_master(client: ClientFixture) -> None:
    one, two = client.agent.buckets["default", 3]
    await client.cluster.submit(resize, {"path": "a"})
    await client.store.close_intake(client.agent.fence(one))
    for _ in range(10):
        assert (await client.cluster.submit(resize, {"path": "a"})).bucket_id == two.id
    await client.store.close_intake(client.agent.fence(two))
    held = await client.cluster.submit(resize, {"path": "a"})
    assert (held.level, held.bucket_id) == (Durability.MASTER, None)
    durable = await client.cluster.submit(resize, {"path": "a"}, durability="master")
    assert durable.level is Durability.MASTER


async def test_an_unserved_job_is_marked_in_its_receipt_or_its_submit_raises(client: ClientFixture) -> None:
    """Whichever way the job goes: through the buckets of the group, as a row due later, under a key."""
    ways: list[dict[str, Any]] = [{}, {"after": 9999.0}, {"durability": "master"}, {"idempotency_key": "k"}]
    for options in ways:
        assert not (await client.cluster.submit(resize, {"path": "b"}, **options)).unserved
    for options in ways:
        again = {**options, "idempotency_key": "l"} if "idempotency_key" in options else options
        receipt = await client.cluster.submit(resize, {"path": "a"}, **again, priority="very_low")
        assert (receipt.unserved, receipt.level) == (True, Durability.MASTER)
        assert "unserved" in repr(receipt)
    rows = await client.rows()
    with pytest.raises(Unserved, match="no bucket serves default/very_low"):
        await client.cluster.submit(resize, {"path": "a"}, priority="very_low", on_unserved="raise")
    assert await client.rows() == rows, "nothing was stored"
    assert (await client.cluster.submit(resize, {"path": "a"}, on_unserved="raise")).bucket_id
    wrong: Any = {"on_unserved": "sink"}
    with pytest.raises(InputError, match="'on_unserved' must be 'hold' or 'raise'"):
        await client.cluster.submit(resize, {"path": "a"}, **wrong)


async def test_bytes_are_no_text(client: ClientFixture) -> None:
    """They would arrive as base64, and the handler would take that for the text."""
    with pytest.raises(InvalidArguments, match="argument 'path' is text, and bytes were given"):
        await client.cluster.submit(resize, {"path": b"a.png"})
    with pytest.raises(BulkFailed, match=r"item 0: .*argument 'path' is text, and bytes were given"):
        await client.cluster.submit_many([{"path": b"a.png"}], resize)
    assert await client.waiting() == {}


async def test_the_hint_of_a_limit_names_a_key_that_exists(client: ClientFixture) -> None:
    with pytest.raises(InvalidArguments, match=r"raise limits\.args") as caught:
        await client.cluster.submit(resize, {"path": "x" * 200_000})
    (key,) = re.findall(r"limits\.\w+", caught.value.hint or "")
    assert load_settings(None, {}, [f"{key}=1MiB"]).settings.limits.args_bytes == 1024 * 1024
