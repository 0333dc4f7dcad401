"""Unique keys through the client: what a submit answers while a job holds its key."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobmaster import (
    BulkFailed,
    Conflict,
    Handlers,
    InputError,
    JobReceipt,
    NotUnique,
    OutcomeUnknown,
    SubmitAnswer,
    Unavailable,
    Unique,
    signal,
)
from jobmaster.clock import new_id
from jobmaster.codec import encode_entry
from jobmaster.master.flow.uniqueness import Uniqueness
from jobmaster.model.flow.uniqueness import UniqueAnswer
from jobmaster.model.job import Durability, Entry, JobState
from tests.integration.client.conftest import OpenCluster
from tests.integration.client.fixture import ClientFixture, resize

ARGS = {"path": "a"}
LATER = datetime(2031, 3, 4, 5, 6, 7, tzinfo=UTC)


async def onboard(client: ClientFixture) -> list[Entry]:
    """Everything due is put into one bucket; what it holds then."""
    bucket = client.agent.buckets["default", 3][0]
    fence = client.agent.fence(bucket)
    answer = await client.master.onboarding.onboard(fence, "default", 3, 300.0, 100)
    reply = await client.store.put(
        bucket.id, bucket.epoch, [(entry.due_us, encode_entry(entry)) for entry in answer.entries],
        high_water_jobs=1000, high_water_bytes=1_000_000,
    )  # fmt: skip
    assert reply.status.value == "OK"
    return answer.entries


async def view(client: ClientFixture, receipt: JobReceipt[Any]) -> Any:
    found = await client.master.queries.get(receipt.id_bytes)
    assert found is not None
    return found


async def test_all_racers_of_a_key_get_one_job_and_one_of_them_has_created_it(
    client: ClientFixture, open_cluster: OpenCluster
) -> None:
    other = await open_cluster()
    receipts: list[JobReceipt[Any]] = await asyncio.gather(
        *(
            cluster.submit(resize, {"path": str(number)}, unique=Unique(key="customer 42"))
            for number, cluster in enumerate((client.cluster, other) * 10)
        )
    )
    assert len({receipt.id for receipt in receipts}) == 1
    assert sorted(receipt.answer.value for receipt in receipts) == ["created", *["existing"] * 19]
    assert {receipt.level for receipt in receipts} == {Durability.MASTER}
    assert sum(receipt.duplicate for receipt in receipts) == 19
    assert len(await client.rows()) == 1


async def test_a_key_is_free_when_its_job_has_ended(client: ClientFixture) -> None:
    first = await client.cluster.submit(resize, ARGS, unique=Unique(key="k"))
    assert [entry.id for entry in await onboard(client)] == [first.id_bytes]
    assert (await client.cluster.submit(resize, ARGS, unique=Unique(key="k"))).id == first.id
    assert await client.agent.work_off() == 1
    second = await client.cluster.submit(resize, ARGS, unique=Unique(key="k"))
    assert (second.answer, second.duplicate) == (SubmitAnswer.CREATED, False)
    assert second.id != first.id


async def test_a_submit_that_is_rejected_names_the_holder(client: ClientFixture) -> None:
    first = await client.cluster.submit(resize, ARGS, unique=Unique(key="k", on_conflict="reject"))
    with pytest.raises(
        NotUnique, match=rf"job {first.id} holds the unique key 'k' of handler 'images\.resize'"
    ) as raised:
        await client.cluster.submit(resize, ARGS, unique=Unique(key="k", on_conflict="reject"))
    assert raised.value.holder == first.id
    assert isinstance(raised.value, Conflict)
    assert len(await client.rows()) == 1


async def test_a_replaced_job_shows_the_one_that_took_its_place(client: ClientFixture) -> None:
    first = await client.cluster.submit(resize, ARGS, unique=Unique(key="k"), at=LATER)
    second = await client.cluster.submit(resize, {"path": "b"}, unique=Unique(key="k", on_conflict="replace"), at=LATER)
    assert (second.answer, second.duplicate) == (SubmitAnswer.REPLACED, False)
    old, new = await first.get(), await second.get()
    assert (old.state, old.superseded_by) == (JobState.CANCELLED, second.id)
    assert (new.state, new.superseded_by, new.unique_key, new.arguments) == (JobState.HELD, None, "k", {"path": "b"})


async def test_keys_are_made_of_arguments_in_any_order(client: ClientFixture) -> None:
    of_path = Unique(args=["path"])
    first = await client.cluster.submit(resize, {"path": "a", "width": 1}, unique=of_path)
    assert (await client.cluster.submit(resize, {"width": 2, "path": "a"}, unique=of_path)).id == first.id
    assert (await client.cluster.submit(resize, {"path": "b", "width": 1}, unique=of_path)).id != first.id
    every = await client.cluster.submit(resize, {"path": "a", "width": 1}, unique=Unique())
    assert every.id != first.id
    assert (await client.cluster.submit(resize, {"width": 1, "path": "a"}, unique=Unique())).id == every.id
    assert (await first.get()).unique_key == '{"path":"a"}'


async def test_a_window_is_held_after_the_end_of_its_job(client: ClientFixture) -> None:
    for given in (Unique(key="w", window="1h"), Unique(key="t", throttle=timedelta(days=1000))):
        first = await client.cluster.submit(resize, ARGS, unique=given)
        await onboard(client)
        assert await client.agent.work_off() == 1
        again = await client.cluster.submit(resize, ARGS, unique=given)
        assert (again.id, again.answer) == (first.id, SubmitAnswer.EXISTING)


# ---------------------------------------------------------------- debounce


async def test_a_debounced_submit_moves_the_job_that_waits_in_the_master(client: ClientFixture) -> None:
    given = Unique(key="k", debounce="1h")
    first = await client.cluster.submit(resize, ARGS, unique=given, after=1000)
    second = await client.cluster.submit(resize, ARGS, unique=given, after=2000)
    assert (second.id, second.answer) == (first.id, SubmitAnswer.DEBOUNCED)
    moved = await first.get()
    assert moved.due_at is not None
    assert abs((moved.due_at - moved.created_at).total_seconds() - 2000) < 100


async def test_a_debounced_submit_takes_the_job_out_of_its_bucket(client: ClientFixture) -> None:
    given = Unique(key="k", debounce="10m")
    first = await client.cluster.submit(resize, ARGS, unique=given, after=100)
    assert len(await onboard(client)) == 1
    assert (await view(client, first)).state is JobState.ASSIGNED
    second = await client.cluster.submit(resize, ARGS, unique=given, after=400)
    assert (second.id, second.answer) == (first.id, SubmitAnswer.DEBOUNCED)
    moved = await view(client, first)
    assert moved.state is JobState.HELD
    assert abs((moved.due_at - moved.created_at).total_seconds() - 400) < 100
    assert await client.waiting() == {}


async def test_a_due_time_is_not_moved_beyond_the_limit(client: ClientFixture) -> None:
    given = Unique(key="k", debounce=400)
    first = await client.cluster.submit(resize, ARGS, unique=given, after=399)
    for held in (True, False):
        if not held:
            await onboard(client)
            connection = await client.connect()
            await connection.execute("UPDATE unique_key SET held_at = held_at - interval '100 s'")
            await connection.close()
        second = await client.cluster.submit(resize, ARGS, unique=given, after=400)
        assert (second.id, second.answer) == (first.id, SubmitAnswer.DEBOUNCED)
        moved = await view(client, first)
        assert (moved.due_at - moved.created_at).total_seconds() <= (401 if held else 301)


async def test_a_submit_after_the_start_makes_a_new_job_and_loses_nothing(client: ClientFixture) -> None:
    given = Unique(key="k", debounce=100)
    first = await client.cluster.submit(resize, ARGS, unique=given, after=0.001)
    await onboard(client)
    claims = [await client.agent.claim(bucket) for bucket in client.agent.buckets["default", 3]]
    assert sum(len(entries) for _, entries in claims) == 1
    receipts: list[JobReceipt[Any]] = await asyncio.gather(
        *(client.cluster.submit(resize, ARGS, unique=given, after=50) for _ in range(6))
    )
    assert len({receipt.id for receipt in receipts}) == 1
    assert receipts[0].id != first.id
    assert sorted(receipt.answer.value for receipt in receipts) == ["created", *["debounced"] * 5]


@pytest.mark.parametrize(("after", "message"), [(None, "needs a due time"), (500, "at most 100 s")])
async def test_a_debounced_submit_has_a_due_time_within_its_limit(
    client: ClientFixture, after: float | None, message: str
) -> None:
    options: Any = {} if after is None else {"after": after}
    with pytest.raises(InputError, match=message):
        await client.cluster.submit(resize, ARGS, unique=Unique(key="k", debounce=100), **options)
    assert await client.rows() == {}


# ---------------------------------------------------------------- handlers that declare it

declared = Handlers()


@declared.job(name="images.resize", unique=Unique(args=["path"], on_conflict="reject"))
async def unique_resize(path: str, width: int = 800) -> None: ...


async def plain_resize(path: str) -> None: ...


async def test_a_handler_declares_it_for_every_submit(client: ClientFixture, open_cluster: OpenCluster) -> None:
    cluster = await open_cluster(handlers=declared)
    first = await cluster.submit(unique_resize, {"path": "a"})
    with pytest.raises(NotUnique):
        await cluster.submit(unique_resize, {"path": "a", "width": 2})
    assert (await cluster.submit(unique_resize, {"path": "b"})).id != first.id
    keyed = await cluster.submit(unique_resize, {"path": "a"}, idempotency_key="mine")
    other = await cluster.submit(unique_resize, {"path": "a"}, unique=Unique(key="other"))
    assert len({first.id, keyed.id, other.id}) == 3


async def test_a_handler_that_declares_it_never_takes_the_way_of_plain_submits(
    open_cluster: OpenCluster, client: ClientFixture
) -> None:
    """Another handler of the same lane and priority has been submitted before, straight into a bucket."""
    both = Handlers()
    both.add(unique_resize, name="images.resize", unique=Unique(args=["path"]))
    both.add(plain_resize, name="images.plain")
    cluster = await open_cluster(handlers=both)
    assert (await cluster.submit(plain_resize, ARGS)).level is Durability.STORE
    receipts = [await cluster.submit(unique_resize, ARGS) for _ in range(3)]
    assert len({receipt.id for receipt in receipts}) == 1
    assert {receipt.level for receipt in receipts} == {Durability.MASTER}


async def test_a_producer_without_the_code_follows_what_agents_have_published(
    client: ClientFixture, open_cluster: OpenCluster
) -> None:
    connection = await client.connect()
    spec = next(iter(declared)).spec
    await connection.execute("DELETE FROM handler")
    await connection.close()
    await client.agent.start(declared)
    cluster = await open_cluster(handlers=Handlers())
    assert spec.unique == {"args": ("path",), "on_conflict": "reject"}
    await cluster.submit("images.resize", {"path": "a"})
    with pytest.raises(NotUnique):
        await cluster.submit("images.resize", {"path": "a"})


# ---------------------------------------------------------------- own ids, transactions, lost answers


async def test_an_own_id_that_is_sent_again_is_the_same_job(client: ClientFixture) -> None:
    job_id = new_id()
    first = await client.cluster.submit(resize, ARGS, job_id=job_id, unique=Unique(key="k"))
    again = await client.cluster.submit(resize, ARGS, job_id=job_id, unique=Unique(key="k"))
    assert (first.answer, again.answer, again.id) == (SubmitAnswer.CREATED, SubmitAnswer.EXISTING, first.id)
    with pytest.raises(Conflict, match="exists already"):
        await client.cluster.submit(resize, {"path": "b"}, job_id=job_id, unique=Unique(key="k"))


async def test_in_a_transaction_the_key_is_held_when_it_commits(client: ClientFixture) -> None:
    connection = await client.connect()
    try:
        transaction = connection.transaction()
        await transaction.start()
        undone = await client.cluster.submit(resize, ARGS, unique=Unique(key="k"), connection=connection)
        await transaction.rollback()
        async with client.cluster.transaction(connection) as tx:
            first = await tx.submit(resize, ARGS, unique=Unique(key="k"))
            again = await tx.submit(resize, {"path": "b"}, unique=Unique(key="k"))
            replaced = await tx.submit(resize, ARGS, unique=Unique(key="k", on_conflict="replace"))
            with pytest.raises(NotUnique):
                await tx.submit(resize, ARGS, unique=Unique(key="k", on_conflict="reject"))
    finally:
        await connection.close()
    assert (first.answer, again.answer, replaced.answer) == ("created", "existing", "replaced")
    assert again.id == first.id != undone.id
    assert await client.rows() == {first.id_bytes: "CANCELLED", replaced.id_bytes: "HELD"}


@pytest.mark.parametrize("written", [True, False])
async def test_a_lost_answer_is_asked_again(
    client: ClientFixture, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    submit, calls = Uniqueness.submit, 0

    async def lossy(self: Uniqueness, jobs: Any) -> list[UniqueAnswer]:
        nonlocal calls
        calls += 1
        if calls == 1:
            if written:
                await submit(self, jobs)
            raise OutcomeUnknown("lost", id_bytes=[one.job.id for one in jobs])
        return await submit(self, jobs)

    monkeypatch.setattr(Uniqueness, "submit", lossy)
    receipt = await client.cluster.submit(resize, ARGS, unique=Unique(key="k"))
    assert (receipt.answer, receipt.duplicate, calls) == (SubmitAnswer.CREATED, False, 2)
    assert list(await client.rows()) == [receipt.id_bytes]


@pytest.mark.slow
async def test_a_key_that_an_open_transaction_has_locked_delays_its_own_submits_alone(client: ClientFixture) -> None:
    connection = await client.connect()
    transaction = connection.transaction()
    await transaction.start()
    await client.cluster.submit(resize, ARGS, unique=Unique(key="locked"), connection=connection)
    answers = await asyncio.gather(
        *(client.cluster.submit(resize, ARGS, unique=Unique(key=key)) for key in ("a", "locked", "b")),
        return_exceptions=True,
    )
    await transaction.rollback()
    await connection.close()
    assert isinstance(answers[1], Unavailable)
    assert "unique key 'locked'" in str(answers[1])
    assert [getattr(one, "answer", None) for one in answers] == [SubmitAnswer.CREATED, None, SubmitAnswer.CREATED]


async def test_a_key_is_not_made_of_what_is_no_argument(client: ClientFixture, open_cluster: OpenCluster) -> None:
    """Every job would have the same key, and all but one would be dropped."""
    remote = await open_cluster(handlers=Handlers())
    for cluster, handler in ((client.cluster, resize), (remote, "images.resize")):
        with pytest.raises(InputError, match=r"'pth', which is no argument of handler 'images\.resize'") as raised:
            await cluster.submit(handler, ARGS, unique=Unique(args=["pth"]))
        assert "did you mean 'path'" in str(raised.value.hint).lower()
        with pytest.raises(BulkFailed, match="no argument of handler"):
            await cluster.submit_many([ARGS], handler, unique=Unique(args=["pth"]))
    assert await client.rows() == {}
    await remote.submit("other", {"a": 1}, unique=Unique(args=["b"]), allow_unregistered=True)


async def test_a_key_of_a_submit_is_not_made_of_a_secret_argument(
    client: ClientFixture, open_cluster: OpenCluster
) -> None:
    """Lists and pages show keys."""
    handlers = Handlers()

    @handlers.job(name="charge", secret=("token",))
    async def charge(order: int, token: str) -> None: ...

    cluster = await open_cluster(handlers=handlers)
    for unique in (Unique(), Unique(args=["token"])):
        with pytest.raises(InputError, match="would show 'token', a secret argument of handler 'charge'"):
            await cluster.submit(charge, {"order": 1, "token": "t0p-secret"}, unique=unique)
    assert await client.rows() == {}
    await cluster.submit(charge, {"order": 1, "token": "t0p-secret"}, unique=Unique(args=["order"]))


async def test_options_that_contradict_each_other_are_refused_and_nothing_is_stored(client: ClientFixture) -> None:
    with pytest.raises(InputError, match="a job has one key"):
        await client.cluster.submit(resize, ARGS, unique=Unique(key="k"), idempotency_key="k")
    with pytest.raises(InputError, match="must be a Unique"):
        await client.cluster.submit(resize, ARGS, unique="k")  # type: ignore[call-overload]
    assert await client.rows() == {}


# ---------------------------------------------------------------- submit_many


async def test_a_bulk_makes_one_job_for_each_key(client: ClientFixture) -> None:
    first = await client.cluster.submit(resize, {"path": "0"}, unique=Unique(args=["path"]))
    items = [{"path": str(number % 5), "width": number + 1} for number in range(20)]
    summary = await client.cluster.submit_many(items, handler=resize, unique=Unique(args=["path"]))
    assert summary.submitted == 20
    assert len(set(summary.ids)) == 5
    assert first.id in summary.ids
    assert summary.by_answer == {SubmitAnswer.CREATED: 4, SubmitAnswer.EXISTING: 16}
    assert len(await client.rows()) == 5


async def test_a_bulk_follows_the_handler_and_stops_at_a_rejected_job(
    client: ClientFixture, open_cluster: OpenCluster
) -> None:
    cluster = await open_cluster(handlers=declared)
    summary = await cluster.submit_many([{"path": str(number)} for number in range(5)], handler=unique_resize)
    assert (summary.submitted, summary.by_level) == (5, {Durability.MASTER: 5})
    with pytest.raises(BulkFailed, match="holds the unique key") as raised:
        await cluster.submit_many([{"path": "9"}, {"path": "3"}], handler=unique_resize)
    assert isinstance(raised.value.__cause__, NotUnique)
    assert (raised.value.summary.submitted, len(raised.value.unknown_ids), raised.value.unsent) == (1, 0, 1)
    assert len(await client.rows()) == 6


async def test_one_key_for_a_whole_bulk_is_refused(client: ClientFixture) -> None:
    with pytest.raises(InputError, match="one key for every job"):
        await client.cluster.submit_many([{"path": "a"}], handler=resize, unique=Unique(key="k"))


# ---------------------------------------------------------------- what has no unique key


async def test_a_job_that_waits_for_a_signal_has_no_unique_key(client: ClientFixture) -> None:
    with pytest.raises(InputError, match="would wait for a signal and hold a unique key"):
        await client.cluster.submit(resize, ARGS, unique=Unique(key="k"), wait_for=signal("s"))
    assert await client.rows() == {}


async def test_a_job_of_a_batch_has_no_unique_key(client: ClientFixture) -> None:
    async with client.cluster.batch("b") as batch:
        with pytest.raises(InputError, match="belongs to a batch"):
            await batch.submit(resize, ARGS, unique=Unique(key="k"))
        with pytest.raises((InputError, BulkFailed), match="belongs to a batch"):
            await batch.submit_many([ARGS], handler=resize, unique=Unique(args=["path"]))
    assert await client.rows() == {}
