"""When a claimed list is deleted and when it is not: interleavings of claims, writes, refusals and lost answers."""

from __future__ import annotations

import msgspec
import pytest

from jobmaster.model.errors import AccessRefused, CodeError, InputError, Refused, SchemaMismatch
from jobmaster.model.job import Entry, JobState
from jobmaster.ports import ReplyStatus, Written
from jobmaster_agents.outcomes import writer
from jobmaster_agents.state.job_table import JobPhase
from tests.support.bucket_worker_fixture import DOWN, LOST, Gate, Row, WorkerHarness, turns
from tests.support.waiting import until
from tests.unit.agents.worker_handlers import go, handlers, job, ran

pytestmark = pytest.mark.usefixtures("no_delays")


def state_of(harness: WorkerHarness, entry: Entry) -> str:
    row = harness.master.rows.get(entry.id)
    return row.state if row is not None else "none"


# ---------------------------------------------------------------- commit before delete, rule E


async def test_the_list_is_deleted_after_the_commit_and_never_before(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    copy = Gate()
    harness.master.script["copy_final"].append(copy)
    harness.submit(bucket, [job(), job()])
    await copy.reached.wait()
    await turns()
    assert len(harness.lists(bucket)) == 1
    assert not harness.store.of("settle")
    copy.opened.set()
    await harness.settled()
    assert not harness.lists(bucket)
    assert len(harness.master.finals) == 2
    assert set(harness.store.news) == set(harness.master.rows)


async def test_the_list_waits_for_the_last_of_its_entries_over_all_statements(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.submit(bucket, [job(), job("wait"), job("fail")])
    await until(lambda: len(harness.master.rows) == 2)
    await turns()
    assert harness.lists(bucket), "one job of the list still runs and is in the master nowhere"
    go.set()
    await harness.settled()
    assert harness.lists(bucket) == {}


async def test_an_unknown_commit_is_sent_again_and_the_list_stays_until_the_answer_is_known(
    harness: WorkerHarness,
) -> None:
    bucket = harness.bucket()
    again = Gate()
    harness.master.script["copy_final"].append(LOST)
    harness.master.script["record_final"] += [LOST, DOWN, again]
    entry = job()
    harness.submit(bucket, [entry])
    await again.reached.wait()
    await turns()
    assert harness.lists(bucket)
    again.opened.set()
    await harness.settled()
    assert not harness.lists(bucket)
    assert [row.id for row in harness.master.finals] == [entry.id], "recorded once, however often it was sent"
    assert harness.bucket_worker.outcome_writer.refused == 0


async def test_an_outcome_that_never_arrived_is_not_taken_for_recorded(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    again = Gate()
    harness.master.script["copy_final"].append(DOWN)
    harness.master.script["record_final"].append(again)
    harness.submit(bucket, [job()])
    await again.reached.wait()
    await turns()
    assert harness.lists(bucket)
    assert not harness.master.finals
    again.opened.set()
    await harness.settled()
    assert len(harness.master.finals) == 1


async def test_an_answer_that_leaves_out_a_job_settles_nothing_and_ends_the_process() -> None:
    with pytest.raises(BaseExceptionGroup) as failure:  # noqa: PT012
        async with WorkerHarness(handlers) as harness:
            bucket = harness.bucket()
            harness.master.script["copy_final"].append(DOWN)
            harness.master.script["record_final"].append(Written(True, frozenset()))
            harness.submit(bucket, [job()])
            await until(lambda: harness.master.of("record_final"))
            await turns()
            assert harness.lists(bucket)
    assert failure.group_contains(CodeError, match="leaves out")


# ---------------------------------------------------------------- the two refusals, rule D


async def test_refused_by_its_row_the_entry_is_settled_and_the_handler_stopped(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    entry = job("wait")
    harness.submit(bucket, [entry])
    await until(lambda: ran)
    harness.master.rows[entry.id] = Row("CANCELLED", 1, b"x" * 16, 1)
    harness.clock.now += 1.0
    await harness.bucket_worker.in_flight_writer.tick()
    await harness.settled()
    assert not harness.lists(bucket)
    assert harness.bucket_worker.executor.running == 0
    assert not harness.master.finals
    assert harness.bucket_worker.outcome_writer.refused == 1


async def test_refused_by_the_bucket_lock_nothing_is_settled_and_no_key_is_touched(
    harness: WorkerHarness,
) -> None:
    bucket = harness.bucket()
    harness.submit(bucket, [job("wait"), job("wait")])
    await until(lambda: len(ran) == 2)
    harness.rescue(bucket)
    harness.clock.now += 1.0
    await harness.bucket_worker.in_flight_writer.tick()
    await until(lambda: harness.bucket_worker.executor.running == 0)
    await turns()
    assert len(harness.lists(bucket)) == 1, "the list is the rescuer's"
    assert not harness.store.of("settle")
    assert not harness.master.finals
    assert len(harness.bucket_worker.job_table) == 0
    assert bucket.lost


async def test_an_outcome_of_a_bucket_that_was_lost_meanwhile_is_not_recorded(harness: WorkerHarness) -> None:
    bucket, other = harness.bucket(), harness.bucket()
    copy = Gate()
    harness.master.script["copy_final"] += [copy, Gate()]
    harness.submit(bucket, [job()])
    await copy.reached.wait()
    harness.submit(bucket, [job(), job()])
    await until(lambda: harness.bucket_worker.outcome_writer.backlog == 3)
    harness.rescue(bucket)
    harness.bucket_worker.forget(bucket.fence.bucket_id, "on request of the test")
    copy.opened.set()
    harness.submit(other, [job()])
    await until(lambda: len(harness.master.of("copy_final")) == 2)
    await turns()
    sent = {row.id for args in harness.master.of("copy_final")[1:] for row in args[0]}
    assert len(sent) == 1, "what was queued for the lost bucket is not sent any more"
    assert harness.lists(bucket), "no key of a lost bucket is touched, not even for what was committed"


async def test_lists_of_a_bucket_lost_before_they_were_deleted_are_left_alone(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    settle = Gate(DOWN)
    harness.store.script["settle"].append(settle)
    harness.submit(bucket, [job()])
    await settle.reached.wait()
    harness.bucket_worker.forget(bucket.fence.bucket_id, "on request of the test")
    settle.opened.set()
    await until(lambda: harness.bucket_worker.outcome_writer.acknowledger.idle)
    assert [names for _, names, _ in harness.store.of("settle")][1:] in ([], [[]])
    assert harness.lists(bucket)
    assert harness.store.news, "the job has its row, whichever agent owns the bucket"


async def test_a_list_that_waits_for_its_deletion_is_not_taken_for_a_lost_one(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    settle = Gate(DOWN)
    harness.store.script["settle"].append(settle)
    harness.submit(bucket, [job()])
    await settle.reached.wait()
    await harness.bucket_worker.claimers[bucket.fence.bucket_id].adopt_unknown_lists()
    await turns()
    assert len(ran) == 1, "its job ran twice although nothing failed but the store"
    settle.opened.set()
    await harness.settled()
    assert not harness.lists(bucket)


# ---------------------------------------------------------------- the lease


async def test_nothing_is_sent_after_the_hard_deadline(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    copy = Gate(LOST)  # the answer takes longer than the lease
    harness.master.script["copy_final"].append(copy)
    harness.submit(bucket, [job()])
    await copy.reached.wait()
    harness.expire()
    copy.opened.set()
    await turns()
    assert not harness.master.of("record_final"), "sent after this process had promised to stop"
    assert harness.lists(bucket)
    harness.trust()
    await harness.settled()
    assert len(harness.master.finals) == 1


async def test_an_outcome_after_the_hard_deadline_waits_for_a_new_lease(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.submit(bucket, [job("wait")])
    await until(lambda: ran)
    harness.expire()
    go.set()
    await until(lambda: harness.bucket_worker.outcome_writer.backlog)
    await turns()
    assert not harness.master.of("copy_final")
    harness.trust()
    await harness.settled()


@pytest.mark.parametrize("statement", ["record_final", "hold", "retry_here", "persist"])
async def test_no_second_try_is_sent_after_the_hard_deadline(harness: WorkerHarness, statement: str) -> None:
    bucket = harness.bucket()
    gate = Gate(DOWN)
    harness.master.script[statement].append(gate)
    name = {"record_final": "note", "hold": "nobody", "retry_here": "fail", "persist": "fenced"}[statement]
    harness.submit(bucket, [job(name, token=2 if statement == "record_final" else 1)])
    await gate.reached.wait()
    harness.expire()
    gate.opened.set()
    await turns()
    assert len(harness.master.of(statement)) == 1
    harness.trust()
    await harness.settled()
    assert len(harness.master.of(statement)) == 2


# ---------------------------------------------------------------- outages that need a person


async def test_one_refused_value_delays_no_other_job_and_loses_nothing(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    bad = job()
    entries = [job(), job(), bad, job(), job()]
    record = harness.master.record_final

    async def picky(rows: list[object]) -> Written:
        if any(row.id == bad.id for row in rows):  # type: ignore[attr-defined]
            raise InputError("a value is refused")
        return await record(rows)  # type: ignore[arg-type]

    harness.master.record_final = picky  # type: ignore[method-assign,assignment]
    harness.master.script["copy_final"].append(InputError("a value is refused"))
    harness.submit(bucket, entries)
    await until(lambda: len(harness.master.finals) == 4)
    await turns()
    kept = harness.bucket_worker.job_table.get(bad.id)
    assert kept is not None
    assert (kept.unwritable, kept.phase) == (True, JobPhase.ENDED)
    assert harness.lists(bucket), "its list is all that is left of it"
    more = job()
    harness.submit(bucket, [more])
    await until(lambda: state_of(harness, more) == JobState.SUCCEEDED)


async def test_a_general_refusal_is_repeated_like_an_outage(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.master.script["copy_final"].append(Refused("permission denied"))
    harness.master.script["record_final"] += [Refused("permission denied")] * 3
    harness.submit(bucket, [job() for _ in range(8)])
    await harness.settled()
    assert len(harness.master.finals) == 8
    assert not harness.lists(bucket)


@pytest.mark.parametrize("error", [SchemaMismatch('relation "job" does not exist'), AccessRefused("permission denied")])
async def test_a_refusal_that_no_row_causes_is_one_error_and_puts_no_job_aside(
    harness: WorkerHarness, error: Refused, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = harness.bucket()
    harness.master.script["copy_final"].append(error)
    harness.master.script["record_final"] += [error] * 9
    harness.submit(bucket, [job() for _ in range(8)])
    await harness.settled()
    assert len(harness.master.of("record_final")) == 10
    assert {len(rows) for (rows,) in harness.master.of("record_final")} == {8}, "it is never halved"
    assert "job_unwritable" not in caplog.text
    assert len(harness.master.finals) == 8
    assert not harness.lists(bucket)


async def test_refusals_of_the_store_are_repeated_too(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.store.script["settle"] += [Refused("NOPERM"), DOWN, LOST]
    harness.store.script["claim"] += [Refused("NOPERM"), DOWN]
    harness.submit(bucket, [job()])
    await harness.settled()
    assert not harness.lists(bucket)
    assert not bucket.lost


async def test_the_backlog_stops_claims_and_its_end_starts_them(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BACKLOG_ROWS_MAX", 10)
    monkeypatch.setattr(writer, "BACKLOG_ROWS_RELIEF", 5)
    bucket = harness.bucket()
    gates = [Gate(), Gate()]
    harness.master.script["copy_final"] += gates
    harness.submit(bucket, [job() for _ in range(20)])
    await until(lambda: harness.bucket_worker.outcome_writer.backlog == 20)
    harness.submit(bucket, [job() for _ in range(20)])
    await turns()
    assert len(harness.store.buckets[bucket.fence.bucket_id].pending) == 20, "claimed although outcomes pile up"
    for gate in gates:
        gate.opened.set()
    await until(lambda: len(harness.master.finals) == 40)
    await harness.settled()


STEP = b'{"workflow":["x",1]}'


@pytest.mark.parametrize("ahead_us", [0, 5_600_000])
@pytest.mark.parametrize("room", [True, False])
async def test_the_end_of_a_step_brings_the_next_one_into_the_same_bucket(
    harness: WorkerHarness, room: bool, ahead_us: int
) -> None:
    """Straight into memory; without room there it is put into the store, and claimed later. What the master finds due does
    not wait when its clock is ahead of the store's."""
    bucket = harness.bucket()
    following = msgspec.structs.replace(job("wait", token=2), due_us=harness.clock.wall_us() + ahead_us)
    harness.master.next_steps = [following]
    if not room:
        harness.bucket_worker.claimers[bucket.fence.bucket_id].take = lambda *_: False  # type: ignore[method-assign]
    harness.submit(bucket, [msgspec.structs.replace(job("note", token=2), headers=STEP)])
    await until(lambda: len(ran) == 2)
    assert len(harness.store.of("assign")) == (0 if room else 1)
    assert len(harness.master.of("onboard")) == 1, "that of the start: nothing is looked for"
    assert harness.bucket_worker.job_table.tokens_of(bucket.fence.bucket_id) == {following.id: 2}
    go.set()
    await harness.settled()
    assert len(harness.master.of("record_final")) == 2, "the next one is no step and is recorded as any job"
    assert harness.bucket_worker.job_table.empty(bucket.fence.bucket_id)


async def test_a_next_step_in_memory_that_takes_long_gets_its_row_as_every_job(harness: WorkerHarness) -> None:
    """After that a rescuer counts it: it may be what kills agents."""
    bucket = harness.bucket()
    following = job("wait", token=2)
    harness.master.next_steps = [following]
    harness.submit(bucket, [msgspec.structs.replace(job("note", token=2), headers=STEP)])
    await until(lambda: len(ran) == 2)
    harness.clock.now += 5.0
    await harness.bucket_worker.in_flight_writer.tick()
    assert state_of(harness, following) == JobState.PROCESSING
    go.set()
    await harness.settled()


async def test_no_next_step_is_taken_into_memory_that_must_not_start_there(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    claimer = harness.bucket_worker.claimers[bucket.fence.bucket_id]
    entries = [job("note", token=2)]
    bucket.closed = True  # it completes, or is frozen
    assert not claimer.take(entries, 0)
    bucket.closed = False
    for name in ("flushing", "ended"):
        setattr(claimer, name, True)
        assert not claimer.take(entries, 0), name
        setattr(claimer, name, False)
    assert not claimer.take([job("note", token=2) for _ in range(claimer.prefetch_limit.jobs + 1)], 0)
    now = harness.clock.now
    harness.expire()
    assert not claimer.take(entries, 0)
    harness.clock.now = now
    harness.trust()
    assert not ran
    assert claimer.take(entries, 0)
    await harness.settled()


@pytest.mark.parametrize("answer", [DOWN, ReplyStatus.CLOSED])
async def test_a_next_step_that_the_store_does_not_take_is_given_back(harness: WorkerHarness, answer: object) -> None:
    bucket = harness.bucket()
    following = job("note", token=2)
    harness.master.next_steps = [following]
    harness.bucket_worker.claimers[bucket.fence.bucket_id].take = lambda *_: False  # type: ignore[method-assign]
    harness.store.script["assign"] += [answer] * 3
    harness.submit(bucket, [msgspec.structs.replace(job("note", token=2), headers=STEP)])
    await harness.settled()
    assert state_of(harness, following) == JobState.HELD
    assert len(ran) == 1


async def test_a_bucket_that_takes_no_jobs_takes_no_next_step(harness: WorkerHarness) -> None:
    """It completes, is paused, has no free slot while others may have one, or its owner must start nothing more."""
    bucket, scope = harness.bucket(), harness.bucket_worker.due_fetcher.step_scope
    harness.bucket_worker.due_fetcher.alone = True
    found = scope(bucket)
    assert found is not None
    assert (found.lane, found.priority) == (bucket.lane, bucket.priority)
    bucket.closed = True
    assert scope(bucket) is None
    bucket.closed = False
    bucket.paused = True
    assert scope(bucket) is None
    bucket.paused = False
    slots = harness.bucket_worker.executor.slots_of(bucket.fence.bucket_id)
    harness.submit(bucket, [job("wait") for _ in range(slots)])
    await until(lambda: len(ran) == slots)
    assert scope(bucket) is not None
    harness.bucket_worker.due_fetcher.alone = False
    assert scope(bucket) is None
    go.set()
    await harness.settled()
    assert scope(bucket) is not None
    harness.expire()
    assert scope(bucket) is None


async def test_the_end_of_a_step_makes_the_agent_look_for_the_next_one(harness: WorkerHarness) -> None:
    """Where the bucket takes none with the answer; else the next step waits for a hint. A plain job causes no look."""
    bucket = harness.bucket()
    looks: list[bytes] = []
    assert harness.bucket_worker.outcome_writer.on_continued == harness.bucket_worker.due_fetcher.kick
    assert harness.bucket_worker.outcome_writer.step_scope == harness.bucket_worker.due_fetcher.step_scope
    harness.bucket_worker.outcome_writer.on_continued = looks.append
    harness.bucket_worker.outcome_writer.step_scope = lambda owned: None
    for headers, expected in (
        (b"", []),
        (b'{"tags":["workflow"]}', []),
        (b'{"workflow":["x",1]}', [bucket.fence.bucket_id]),
    ):
        harness.master.script["copy_final"].append(DOWN)
        harness.submit(bucket, [msgspec.structs.replace(job(), headers=headers)])
        await harness.settled()
        assert looks == expected
