"""Signals from the client: submits that wait, of every way there is, and what a signal does to them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jobmaster import Conflict, Durability, JobState, call, signal
from tests.integration.client.fixture import ClientFixture, resize

ARGS = {"path": "a"}
LATER = datetime(2031, 3, 4, 5, 6, 7, 890123, tzinfo=UTC)


async def test_a_job_waits_in_the_master_and_is_started_by_its_signal(client: ClientFixture) -> None:
    cluster = client.cluster
    receipt = await cluster.submit(resize, ARGS, wait_for=signal("order:17", timeout=timedelta(hours=1)))
    assert (receipt.level, receipt.bucket_id, await cluster.state(receipt)) == (
        Durability.MASTER,
        None,
        JobState.WAITING,
    )
    assert await client.agent.work_off() == 0
    sent = await cluster.signals.send("order:17", {"paid": True})
    assert (sent.delivered, sent.key) == (1, "order:17")
    view = await receipt.get()
    assert (view.state, view.headers.received is not None) == (JobState.HELD, True)
    again = await cluster.signals.send("order:17", {"paid": True}, signal_id=sent.id_bytes)
    assert (again.delivered, again.repeated) == (1, True)


async def test_a_due_time_a_key_and_an_id_go_with_a_wait(client: ClientFixture) -> None:
    cluster = client.cluster
    first = await cluster.submit(resize, ARGS, wait_for=signal("k"), idempotency_key="once", at=LATER)
    second = await cluster.submit(resize, ARGS, wait_for=signal("k"), idempotency_key="once", at=LATER)
    assert (second.id, second.duplicate) == (first.id, True)
    own = await cluster.submit(resize, ARGS, wait_for=signal("k"))
    same = await cluster.submit(resize, ARGS, wait_for=signal("k"), job_id=own.id)
    assert same.duplicate
    assert [(one.key, one.jobs) for one in await cluster.signals.waiting("k")] == [("k", 2)]
    assert (await cluster.signals.send("k")).delivered == 2
    assert (await first.get()).due_us == int(LATER.timestamp()) * 1_000_000 + LATER.microsecond


async def test_a_wait_joins_the_transaction_of_its_caller(client: ClientFixture) -> None:
    cluster, connection = client.cluster, await client.connect()
    async with cluster.transaction(connection) as tx:
        receipt = await tx.submit(resize, ARGS, wait_for=signal("k"))
        assert await cluster.signals.waiting() == []
    assert await cluster.state(receipt) is JobState.WAITING
    transaction = connection.transaction()
    await transaction.start()
    gone = await cluster.submit(resize, ARGS, wait_for=signal("k"), connection=connection)
    await transaction.rollback()
    await connection.close()
    assert gone.level is Durability.TRANSACTION
    assert (await cluster.signals.send("k")).delivered == 1


async def test_all_jobs_of_a_bulk_wait_for_one_signal(client: ClientFixture) -> None:
    cluster = client.cluster
    calls = (call(resize, f"{number}") for number in range(1200))  # several inserts
    summary = await cluster.submit_many(calls, wait_for=signal("open", timeout=60))
    assert summary.by_level == {Durability.MASTER: 1200}
    assert [(one.key, one.jobs) for one in await cluster.signals.waiting()] == [("open", 1200)]
    assert (await cluster.signals.send("open")).delivered == 1200


async def test_a_statement_of_sql_makes_a_job_that_waits(client: ClientFixture) -> None:
    cluster, connection = client.cluster, await client.connect()
    wait_for = signal("order:17 'ü'", timeout=timedelta(hours=1), on_timeout="run")
    text, params = cluster.statement(resize, ARGS, paramstyle="numeric", wait_for=wait_for, idempotency_key="k")
    ids = {await connection.fetchval(text, *params) for _ in range(2)}
    same = await cluster.submit(resize, ARGS, wait_for=wait_for, idempotency_key="k")
    other = await cluster.submit(resize, ARGS, wait_for=wait_for, idempotency_key="other")
    assert ids == {same.id}
    one, two = await same.get(), await other.get()
    assert (one.state, one.headers.signal, one.headers.requires) == (JobState.WAITING, two.headers.signal, ("signals",))
    assert (await cluster.signals.send(wait_for.key)).delivered == 2
    await connection.close()


async def test_what_waits_for_a_signal_is_not_changed(client: ClientFixture) -> None:
    receipt = await client.cluster.submit(resize, ARGS, wait_for=signal("k"))
    with pytest.raises(Conflict, match="waits for the signal 'k'"):
        await client.cluster.run_now(receipt)


async def test_a_cancelled_job_receives_nothing(client: ClientFixture) -> None:
    receipt = await client.cluster.submit(resize, ARGS, wait_for=signal("k"))
    assert await receipt.cancel() is JobState.CANCELLED
    assert (await client.cluster.signals.send("k")).delivered == 0


async def test_the_retry_of_a_job_that_has_received_its_signal_has_it_too(client: ClientFixture) -> None:
    cluster = client.cluster
    receipt = await cluster.submit(resize, ARGS, wait_for=signal("k"))
    await cluster.signals.send("k", "x" * 16_000)
    await receipt.cancel()
    again = await cluster.retry(receipt)
    view = await again.get()
    assert view.state is not JobState.WAITING
    assert view.headers.received is not None
    assert len(view.headers.received.payload) == 16_002
