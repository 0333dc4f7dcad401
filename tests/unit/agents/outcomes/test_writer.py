"""When a claimed list is deleted and when it is not: interleavings of claims, writes, refusals and lost answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from jobmaster.clock import new_id
from jobmaster.handlers import Handlers
from jobmaster.model.errors import AccessRefused, CodeError, InputError, Refused, SchemaMismatch
from jobmaster.model.job import Entry, JobState
from jobmaster.ports import Written
from jobmaster_agents import until_answered
from jobmaster_agents.outcomes import writer
from jobmaster_agents.state.job_table import JobPhase
from tests.support.bucket_worker_fixture import DOWN, LOST, Gate, Kit, Row, turns
from tests.support.waiting import until

handlers = Handlers()
ran: list[bytes] = []
go = asyncio.Event()


@handlers.job(name="note")
async def note() -> None:
    ran.append(b"note")


@handlers.job(name="wait", timeout=1e6)
async def wait() -> str:
    ran.append(b"wait")
    await go.wait()
    return "done"


@handlers.job(name="fail", max_attempts=2, backoff=7, backoff_jitter=0.0)
async def fail() -> None:
    raise RuntimeError("as asked")


@handlers.job(name="fenced", start="fenced", timeout=1e6)
async def fenced() -> None:
    ran.append(b"fenced")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(until_answered, "BACKOFF_SECONDS", 0.0)
    ran.clear()
    go.clear()


@pytest.fixture
async def kit() -> AsyncIterator[Kit]:
    async with Kit(handlers) as made:
        yield made


def job(name: str = "note", token: int = 1) -> Entry:
    return Entry(new_id(), token, name, b"{}")


def state_of(kit: Kit, entry: Entry) -> str:
    row = kit.master.rows.get(entry.id)
    return row.state if row is not None else "none"


# ---------------------------------------------------------------- commit before delete, rule E


async def test_the_list_is_deleted_after_the_commit_and_never_before(kit: Kit) -> None:
    bucket = kit.bucket()
    copy = Gate()
    kit.master.script["copy_final"].append(copy)
    kit.submit(bucket, [job(), job()])
    await copy.reached.wait()
    await turns()
    assert len(kit.lists(bucket)) == 1
    assert not kit.store.of("settle")
    copy.opened.set()
    await kit.settled()
    assert not kit.lists(bucket)
    assert len(kit.master.finals) == 2
    assert set(kit.store.news) == set(kit.master.rows)


async def test_the_list_waits_for_the_last_of_its_entries_over_all_statements(kit: Kit) -> None:
    bucket = kit.bucket()
    kit.submit(bucket, [job(), job("wait"), job("fail")])
    await until(lambda: len(kit.master.rows) == 2)
    await turns()
    assert kit.lists(bucket), "one job of the list still runs and is in the master nowhere"
    go.set()
    await kit.settled()
    assert kit.lists(bucket) == {}


async def test_an_unknown_commit_is_sent_again_and_the_list_stays_until_the_answer_is_known(kit: Kit) -> None:
    bucket = kit.bucket()
    again = Gate()
    kit.master.script["copy_final"].append(LOST)
    kit.master.script["record_final"] += [LOST, DOWN, again]
    entry = job()
    kit.submit(bucket, [entry])
    await again.reached.wait()
    await turns()
    assert kit.lists(bucket)
    again.opened.set()
    await kit.settled()
    assert not kit.lists(bucket)
    assert [row.id for row in kit.master.finals] == [entry.id], "recorded once, however often it was sent"
    assert kit.bucket_worker.outcome_writer.refused == 0


async def test_an_outcome_that_never_arrived_is_not_taken_for_recorded(kit: Kit) -> None:
    bucket = kit.bucket()
    again = Gate()
    kit.master.script["copy_final"].append(DOWN)
    kit.master.script["record_final"].append(again)
    kit.submit(bucket, [job()])
    await again.reached.wait()
    await turns()
    assert kit.lists(bucket)
    assert not kit.master.finals
    again.opened.set()
    await kit.settled()
    assert len(kit.master.finals) == 1


async def test_an_answer_that_leaves_out_a_job_settles_nothing_and_ends_the_process() -> None:
    with pytest.raises(BaseExceptionGroup) as failure:  # noqa: PT012
        async with Kit(handlers) as kit:
            bucket = kit.bucket()
            kit.master.script["copy_final"].append(DOWN)
            kit.master.script["record_final"].append(Written(True, frozenset()))
            kit.submit(bucket, [job()])
            await until(lambda: kit.master.of("record_final"))
            await turns()
            assert kit.lists(bucket)
    assert failure.group_contains(CodeError, match="leaves out")


# ---------------------------------------------------------------- the two refusals, rule D


async def test_refused_by_its_row_the_entry_is_settled_and_the_handler_stopped(kit: Kit) -> None:
    bucket = kit.bucket()
    entry = job("wait")
    kit.submit(bucket, [entry])
    await until(lambda: ran)
    kit.master.rows[entry.id] = Row("CANCELLED", 1, b"x" * 16, 1)
    kit.clock.now += 1.0
    await kit.bucket_worker.in_flight_writer.tick()
    await kit.settled()
    assert not kit.lists(bucket)
    assert kit.bucket_worker.executor.running == 0
    assert not kit.master.finals
    assert kit.bucket_worker.outcome_writer.refused == 1


async def test_refused_by_the_bucket_lock_nothing_is_settled_and_no_key_is_touched(kit: Kit) -> None:
    bucket = kit.bucket()
    kit.submit(bucket, [job("wait"), job("wait")])
    await until(lambda: len(ran) == 2)
    kit.rescue(bucket)
    kit.clock.now += 1.0
    await kit.bucket_worker.in_flight_writer.tick()
    await until(lambda: kit.bucket_worker.executor.running == 0)
    await turns()
    assert len(kit.lists(bucket)) == 1, "the list is the rescuer's"
    assert not kit.store.of("settle")
    assert not kit.master.finals
    assert len(kit.bucket_worker.job_table) == 0
    assert bucket.lost


async def test_an_outcome_of_a_bucket_that_was_lost_meanwhile_is_not_recorded(kit: Kit) -> None:
    bucket, other = kit.bucket(), kit.bucket()
    copy = Gate()
    kit.master.script["copy_final"] += [copy, Gate()]
    kit.submit(bucket, [job()])
    await copy.reached.wait()
    kit.submit(bucket, [job(), job()])
    await until(lambda: kit.bucket_worker.outcome_writer.backlog == 3)
    kit.rescue(bucket)
    kit.bucket_worker.forget(bucket.fence.bucket_id, "the test says so")
    copy.opened.set()
    kit.submit(other, [job()])
    await until(lambda: len(kit.master.of("copy_final")) == 2)
    await turns()
    sent = {row.id for args in kit.master.of("copy_final")[1:] for row in args[0]}
    assert len(sent) == 1, "what was queued for the lost bucket is not sent any more"
    assert kit.lists(bucket), "no key of a lost bucket is touched, not even for what was committed"


async def test_lists_of_a_bucket_lost_before_they_were_deleted_are_left_alone(kit: Kit) -> None:
    bucket = kit.bucket()
    settle = Gate(DOWN)
    kit.store.script["settle"].append(settle)
    kit.submit(bucket, [job()])
    await settle.reached.wait()
    kit.bucket_worker.forget(bucket.fence.bucket_id, "the test says so")
    settle.opened.set()
    await until(lambda: kit.bucket_worker.outcome_writer.acknowledger.idle)
    assert [names for _, names, _ in kit.store.of("settle")][1:] in ([], [[]])
    assert kit.lists(bucket)
    assert kit.store.news, "that the job has its row is true whoever owns the bucket"


async def test_a_list_that_waits_for_its_deletion_is_not_taken_for_a_lost_one(kit: Kit) -> None:
    bucket = kit.bucket()
    settle = Gate(DOWN)
    kit.store.script["settle"].append(settle)
    kit.submit(bucket, [job()])
    await settle.reached.wait()
    await kit.bucket_worker.claimers[bucket.fence.bucket_id].adopt_unknown_lists()
    await turns()
    assert len(ran) == 1, "its job ran twice although nothing failed but the store"
    settle.opened.set()
    await kit.settled()
    assert not kit.lists(bucket)


# ---------------------------------------------------------------- the lease


async def test_nothing_is_sent_after_the_hard_deadline(kit: Kit) -> None:
    bucket = kit.bucket()
    copy = Gate(LOST)  # the answer takes longer than the lease
    kit.master.script["copy_final"].append(copy)
    kit.submit(bucket, [job()])
    await copy.reached.wait()
    kit.expire()
    copy.opened.set()
    await turns()
    assert not kit.master.of("record_final"), "sent after this process had promised to stop"
    assert kit.lists(bucket)
    kit.trust()
    await kit.settled()
    assert len(kit.master.finals) == 1


async def test_an_outcome_after_the_hard_deadline_waits_for_a_new_lease(kit: Kit) -> None:
    bucket = kit.bucket()
    kit.submit(bucket, [job("wait")])
    await until(lambda: ran)
    kit.expire()
    go.set()
    await until(lambda: kit.bucket_worker.outcome_writer.backlog)
    await turns()
    assert not kit.master.of("copy_final")
    kit.trust()
    await kit.settled()


@pytest.mark.parametrize("statement", ["record_final", "hold", "retry_here", "persist"])
async def test_no_second_try_is_sent_after_the_hard_deadline(kit: Kit, statement: str) -> None:
    bucket = kit.bucket()
    gate = Gate(DOWN)
    kit.master.script[statement].append(gate)
    name = {"record_final": "note", "hold": "nobody", "retry_here": "fail", "persist": "fenced"}[statement]
    kit.submit(bucket, [job(name, token=2 if statement == "record_final" else 1)])
    await gate.reached.wait()
    kit.expire()
    gate.opened.set()
    await turns()
    assert len(kit.master.of(statement)) == 1
    kit.trust()
    await kit.settled()
    assert len(kit.master.of(statement)) == 2


# ---------------------------------------------------------------- outages that need a person


async def test_one_refused_value_delays_no_other_job_and_loses_nothing(kit: Kit) -> None:
    bucket = kit.bucket()
    bad = job()
    entries = [job(), job(), bad, job(), job()]
    record = kit.master.record_final

    async def picky(rows: list[object]) -> Written:
        if any(row.id == bad.id for row in rows):  # type: ignore[attr-defined]
            raise InputError("a value is refused")
        return await record(rows)  # type: ignore[arg-type]

    kit.master.record_final = picky  # type: ignore[method-assign,assignment]
    kit.master.script["copy_final"].append(InputError("a value is refused"))
    kit.submit(bucket, entries)
    await until(lambda: len(kit.master.finals) == 4)
    await turns()
    kept = kit.bucket_worker.job_table.get(bad.id)
    assert kept is not None
    assert (kept.unwritable, kept.phase) == (True, JobPhase.ENDED)
    assert kit.lists(bucket), "its list is all that is left of it"
    more = job()
    kit.submit(bucket, [more])
    await until(lambda: state_of(kit, more) == JobState.SUCCEEDED)


async def test_a_general_refusal_is_repeated_like_an_outage(kit: Kit) -> None:
    bucket = kit.bucket()
    kit.master.script["copy_final"].append(Refused("permission denied"))
    kit.master.script["record_final"] += [Refused("permission denied")] * 3
    kit.submit(bucket, [job() for _ in range(8)])
    await kit.settled()
    assert len(kit.master.finals) == 8
    assert not kit.lists(bucket)


@pytest.mark.parametrize("error", [SchemaMismatch('relation "job" does not exist'), AccessRefused("permission denied")])
async def test_a_refusal_that_no_row_causes_is_one_error_and_puts_no_job_aside(
    kit: Kit, error: Refused, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = kit.bucket()
    kit.master.script["copy_final"].append(error)
    kit.master.script["record_final"] += [error] * 9
    kit.submit(bucket, [job() for _ in range(8)])
    await kit.settled()
    assert len(kit.master.of("record_final")) == 10
    assert {len(rows) for (rows,) in kit.master.of("record_final")} == {8}, "it is never halved"
    assert "job_unwritable" not in caplog.text
    assert len(kit.master.finals) == 8
    assert not kit.lists(bucket)


async def test_refusals_of_the_store_are_repeated_too(kit: Kit) -> None:
    bucket = kit.bucket()
    kit.store.script["settle"] += [Refused("NOPERM"), DOWN, LOST]
    kit.store.script["claim"] += [Refused("NOPERM"), DOWN]
    kit.submit(bucket, [job()])
    await kit.settled()
    assert not kit.lists(bucket)
    assert not bucket.lost


async def test_the_backlog_stops_claims_and_its_end_starts_them(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BACKLOG_ROWS_MAX", 10)
    monkeypatch.setattr(writer, "BACKLOG_ROWS_RELIEF", 5)
    bucket = kit.bucket()
    gates = [Gate(), Gate()]
    kit.master.script["copy_final"] += gates
    kit.submit(bucket, [job() for _ in range(20)])
    await until(lambda: kit.bucket_worker.outcome_writer.backlog == 20)
    kit.submit(bucket, [job() for _ in range(20)])
    await turns()
    assert len(kit.store.buckets[bucket.fence.bucket_id].pending) == 20, "claimed although outcomes pile up"
    for gate in gates:
        gate.opened.set()
    await until(lambda: len(kit.master.finals) == 40)
    await kit.settled()
