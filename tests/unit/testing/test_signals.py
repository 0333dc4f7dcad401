"""Signals of a cluster in memory: the test of an application sends what its jobs wait for."""

from __future__ import annotations

from uuid import uuid4

import msgspec
import pytest

from jobmaster import BulkFailed, Conflict, Durability, InputError, JobState, Recipients, Unique, WaitFor, call, signal
from jobmaster.handlers.received_signal import ReceivedSignal
from jobmaster.testing import Drained, Jobs, run_handler_async
from tests.unit.testing import app

ARGS = {"order": 17}


async def test_a_job_runs_when_its_signal_has_come_and_has_it_in_every_attempt(jobs: Jobs) -> None:
    cluster = jobs.cluster
    receipt = await cluster.submit(app.ship, ARGS, wait_for=signal("order:17"))
    other = await cluster.submit(app.ship, ARGS, wait_for=signal("order:18"), priority="high")
    assert await jobs.drain() == Drained(left=2)
    assert await cluster.state(receipt) is JobState.WAITING
    assert [(one.key, one.jobs) for one in await cluster.signals.waiting()] == [("order:17", 1), ("order:18", 1)]
    sent = await cluster.signals.send("order:17", "again")
    assert (sent.delivered, sent.repeated, sent.kept_until_us) == (1, False, None)
    assert (await jobs.drain(due_within="1m")).succeeded == 1
    assert await receipt.result() == [17, "again"]
    assert await other.cancel() is JobState.CANCELLED
    assert (await cluster.signals.send("order:18")).delivered == 0


async def test_one_all_kept_and_repeated(jobs: Jobs) -> None:
    signals, cluster = jobs.cluster.signals, jobs.cluster
    receipts = [await cluster.submit(app.ship, {"order": n}, wait_for=signal("k")) for n in range(3)]
    same = uuid4()
    for _ in range(2):
        assert (await signals.send("k", 1, to="one", signal_id=same)).delivered == 1
    with pytest.raises(Conflict, match="another key"):
        await signals.send("k", 2, to="one", signal_id=same)
    assert (await signals.send("k", 2)).delivered == 2
    await jobs.drain()
    assert [await receipt.result() for receipt in receipts] == [[0, 1], [1, 2], [2, 2]]
    await signals.send("k", 3, to=Recipients.ONE, keep_for=60, signal_id=(kept := uuid4()))
    await signals.send("k", 4, keep_for=60)
    await signals.send("k", 5, keep_for=60)
    assert [kept.payload_json for kept in await signals.kept("k")] == [b"3", b"5"]
    receipts = [await cluster.submit(app.ship, {"order": n}, wait_for=signal("k")) for n in range(3)]
    await jobs.drain()
    assert [await receipt.result() for receipt in receipts] == [[0, 3], [1, 5], [2, 5]]
    again = await signals.send("k", 3, to=Recipients.ONE, keep_for=60, signal_id=kept)
    assert (again.repeated, again.delivered, again.kept_until_us) == (True, 1, None)


async def test_all_jobs_of_a_bulk_wait_for_one_signal(jobs: Jobs) -> None:
    cluster = jobs.cluster
    summary = await cluster.submit_many(({"order": n} for n in range(3)), app.ship, wait_for=signal("open"))
    assert summary.by_level == {Durability.MASTER: 3}
    assert await jobs.drain() == Drained(left=3)
    assert (await cluster.signals.send("open", "now")).delivered == 3
    assert (await jobs.drain()).succeeded == 3
    async with cluster.batch("orders") as batch:
        await batch.submit_many([ARGS], app.ship, wait_for=signal("open"))
    assert await jobs.drain() == Drained(left=1)
    await cluster.signals.send("open", "later")
    await jobs.drain()
    counts = (await batch.progress()).counts
    assert counts is not None
    assert counts.succeeded == 1


async def test_a_wait_that_is_over_ends_the_job_or_starts_it_without_a_signal(jobs: Jobs) -> None:
    ends = await jobs.cluster.submit(app.ship, ARGS, wait_for=signal("k", timeout=60))
    runs = await jobs.cluster.submit(app.ship, ARGS, wait_for=signal("k", timeout=60, on_timeout="run"))
    assert await jobs.drain() == Drained(left=2)
    await jobs.drain(due_within="2m")
    assert await runs.result() == [17, None]
    assert await jobs.cluster.state(ends) is JobState.EXPIRED
    again = await jobs.cluster.retry(ends)
    assert await jobs.cluster.state(again) is JobState.WAITING, "the retry waits anew"
    await jobs.cluster.signals.send("k", "now")
    await jobs.drain()
    assert await again.result() == [17, "now"]


def test_the_synchronous_cluster_sends_the_same(jobs: Jobs) -> None:
    with jobs.sync_cluster as cluster:
        receipt = cluster.submit(app.ship, ARGS, wait_for=signal("k"))
        assert [one.key for one in cluster.signals.waiting("k")] == ["k"]
        assert cluster.signals.send("k", {"paid": True}).delivered == 1
        assert cluster.signals.kept() == []
        assert jobs.drain_sync() == Drained(succeeded=1)
        assert receipt.result() == [17, {"paid": True}]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"key": ""}, "is empty"),
        ({"key": 'a"b'}, "contains '\"'"),
        ({"key": "a\\b"}, "contains"),
        ({"key": "a\nb"}, "U\\+000A"),
        ({"key": "x" * 201}, "the limit is 200"),
        ({"key": 7}, "must be text"),
        ({"key": "k", "timeout": 0}, "more than 0"),
        ({"key": "k", "timeout": "1h"}, "more than 0"),
        ({"key": "k", "timeout": float("inf")}, "at most"),
        ({"key": "k", "on_timeout": "fail"}, "'expire' or 'run'"),
        ({"key": "k", "on_timeout": "run"}, "no time-out"),
    ],
)
def test_a_wait_that_cannot_be_meant(options: dict[str, object], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        signal(**options)  # type: ignore[arg-type]


async def test_what_cannot_be_sent_or_waited_for(jobs: Jobs) -> None:
    cluster = jobs.cluster
    for options, problem in (
        ({"to": "some"}, "'all' or 'one'"),
        ({"keep_for": 0}, "more than 0"),
        ({"signal_id": "x"}, "is not a UUID"),
        ({"payload": float("nan")}, "nan"),
        ({"payload": "x" * 20_000}, "the limit is 16384"),
        ({"actor": ""}, "is empty"),
    ):
        with pytest.raises(InputError, match=problem):
            await cluster.signals.send("k", **options)
    with pytest.raises(InputError, match="must be a signal"):
        await cluster.submit(app.ship, ARGS, wait_for="order:17")  # type: ignore[call-overload]
    with pytest.raises(InputError, match="waits in the master"):
        await cluster.submit(app.ship, ARGS, wait_for=signal("k"), durability="store")
    with pytest.raises(InputError, match="waits in the master"):
        await cluster.submit_many([ARGS], app.ship, wait_for=signal("k"), durability="store")
    with pytest.raises(BulkFailed, match="wait for a signal and hold a unique key"):
        await cluster.submit_many([ARGS], app.ship, wait_for=signal("k"), unique=Unique())
    with pytest.raises(InputError, match="runs an attempt at once"):
        await run_handler_async(call(app.ship, 17), wait_for=signal("k"))
    assert await cluster.signals.waiting() == []


def test_a_payload_of_a_type() -> None:
    class Payment(msgspec.Struct):
        amount: int

    received = ReceivedSignal(key="k", payload_json='{"amount":5}', sent_us=0)
    assert received.payload_as(Payment) == Payment(5)
    assert received.payload == {"amount": 5}
    assert isinstance(signal("k"), WaitFor)
