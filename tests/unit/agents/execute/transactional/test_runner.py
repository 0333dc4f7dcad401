"""Transactional handlers: when their outcome is committed, and the outcome of every other end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from jobmaster.clock import new_id
from jobmaster.codec import decode_error
from jobmaster.model.job import Conclusion, Entry, ErrorInfo
from jobmaster_agents import call_retry
from jobmaster_agents.execute.attempt_result import AttemptResult, ResultKind
from jobmaster_agents.outcomes.outcome_builder import StopCause
from tests.support.bucket_worker_fixture import DOWN, LOST, Gate, Row, turns
from tests.support.fakes.fake_transactions import TransactionalHarness, go, log
from tests.support.idle import is_idle
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_retry, "BACKOFF_SECONDS", 0.0)
    log.clear()
    go.clear()


@pytest.fixture
async def harness() -> AsyncIterator[TransactionalHarness]:
    async with TransactionalHarness() as made:
        yield made
        go.set()


async def test_it_is_committed_after_the_handler_has_returned_and_reported_once(harness: TransactionalHarness) -> None:
    (entry,) = harness.put("pays")
    await until(lambda: log)
    await turns()
    assert (harness.state(entry), harness.source.effects) == ("none", []), "the end of the block commits nothing"
    go.set()
    await harness.settled()
    (row,) = harness.master.finals
    assert (row.state, row.result, row.attempt) == ("SUCCEEDED", b'"paid"', 1)
    assert harness.source.effects == ["wrote"]
    assert not harness.master.of("copy_final")
    assert harness.bucket_worker._telemetry.transactions == {"committed": 1}


async def test_others_of_the_bucket_do_not_wait_for_it(harness: TransactionalHarness) -> None:
    gate = Gate()
    harness.source.script = [gate]
    go.set()
    slow, *others = harness.put("pays", *["plain"] * 20)
    await gate.reached.wait()
    await until(lambda: all(harness.state(entry) == "SUCCEEDED" for entry in others))
    assert harness.state(slow) == "none"
    gate.opened.set()
    await harness.settled()
    assert harness.state(slow) == "SUCCEEDED"


async def test_no_more_run_at_once_than_there_are_connections(harness: TransactionalHarness) -> None:
    harness.put(*["pays"] * 5)
    await until(lambda: len(log) == 2)
    await turns()
    assert len(log) == 2
    go.set()
    await harness.settled()
    assert len(harness.source.effects) == 5
    assert harness.bucket_worker.executor.running == 0


@pytest.mark.parametrize("name", ["fails_inside", "fails_after", "twice", "too_large", "exits"])
async def test_whatever_goes_wrong_takes_the_effects_back(harness: TransactionalHarness, name: str) -> None:
    (entry,) = harness.put(name)
    await harness.settled()
    assert harness.state(entry) == "FAILED"
    assert (harness.source.effects, harness.source.rolled_back) == ([], 1)
    message = {"twice": "once in an attempt", "too_large": "the limit is"}.get(name)
    assert message is None or message in harness.error(entry).message


async def test_a_handler_that_copes_with_a_failed_block_succeeds_the_usual_way(harness: TransactionalHarness) -> None:
    entries = harness.put("copes", "does_without")
    await harness.settled()
    assert [harness.state(entry) for entry in entries] == ["SUCCEEDED"] * 2
    assert harness.batched() == 2


@pytest.mark.parametrize("name", ["wraps", "groups"])
async def test_an_outage_of_the_master_uses_up_no_attempt_however_it_is_wrapped(
    harness: TransactionalHarness, name: str
) -> None:
    harness.source.down = True
    (entry,) = harness.put(name)
    await harness.settled()
    assert harness.state(entry) == "HELD"
    assert not harness.master.finals
    assert not harness.master.attempts


async def test_a_decision_of_the_handler_counts_during_an_outage(harness: TransactionalHarness) -> None:
    harness.source.down = True
    (entry,) = harness.put("decides")
    await harness.settled()
    assert (harness.state(entry), harness.error(entry).message) == ("FAILED", "not without the database")


async def test_without_the_declaration_it_is_a_clear_error(harness: TransactionalHarness) -> None:
    (entry,) = harness.put("not_declared")
    await harness.settled()
    assert "transactional=True" in harness.error(entry).message


async def test_a_commit_that_the_server_refuses_is_a_failed_attempt(harness: TransactionalHarness) -> None:
    harness.source.script = [RuntimeError("violates a deferred constraint")]
    go.set()
    (entry,) = harness.put("pays")
    await until(lambda: harness.master.attempts)
    assert harness.state(entry) == "ASSIGNED", "tried again"
    assert harness.source.effects == []


@pytest.mark.parametrize("look", [None, DOWN], ids=["at once", "when the master answers again"])
async def test_a_lost_answer_to_a_commit_is_found_on_the_row(harness: TransactionalHarness, look: Any) -> None:
    harness.source.script = [LOST]
    harness.master.script["is_recorded"] += [look, None]
    go.set()
    (entry,) = harness.put("pays")
    await harness.settled()
    assert (harness.state(entry), harness.source.effects) == ("SUCCEEDED", ["wrote"])
    assert len(harness.master.finals) == 1
    assert not harness.master.attempts
    assert harness.bucket_worker._telemetry.transactions == {"unknown": 1, "committed": 1}


async def test_a_commit_that_did_not_happen_is_another_attempt(harness: TransactionalHarness) -> None:
    harness.source.script = [DOWN]
    go.set()
    (entry,) = harness.put("pays")
    await until(lambda: harness.master.attempts)
    (attempt,) = harness.master.attempts
    assert attempt.error is not None
    assert decode_error(attempt.error).type == "CommitLost"
    harness.clock.now += 8.0
    harness.trust()
    await until(lambda: harness.state(entry) == "ASSIGNED")
    assert harness.source.effects == []


async def test_a_commit_that_happens_after_the_look_refuses_what_is_written_instead(
    harness: TransactionalHarness,
) -> None:
    harness.source.script = [LOST]
    harness.master.script["is_recorded"].append(False)
    go.set()
    (entry,) = harness.put("pays")
    await harness.settled()
    assert (harness.state(entry), harness.source.effects) == ("SUCCEEDED", ["wrote"])
    assert not harness.master.attempts
    assert harness.bucket_worker.outcome_writer.refused == 1


async def test_a_superseded_attempt_is_rolled_back_counted_and_traced(harness: TransactionalHarness) -> None:
    gate = Gate()
    harness.source.script = [gate]
    go.set()
    (entry,) = harness.put("pays")
    await gate.reached.wait()
    harness.master.rows[entry.id] = Row("HELD", 2)
    gate.opened.set()
    await harness.settled()
    assert harness.state(entry) == "HELD"
    assert harness.source.effects == []
    assert harness.bucket_worker.outcome_writer.refused == 1
    assert len(harness.master.of("mark_refused")) == 1
    assert not harness.master.finals


async def test_a_time_out_rolls_back_and_is_a_failed_attempt(harness: TransactionalHarness) -> None:
    (entry,) = harness.put("pays")
    await until(lambda: log)
    harness.clock.now += 101.0
    harness.trust()
    await until(lambda: harness.master.attempts)
    assert harness.source.rolled_back == 1
    assert harness.source.effects == []
    assert harness.state(entry) == "ASSIGNED"


async def test_a_time_out_that_comes_during_the_commit_disturbs_nothing(harness: TransactionalHarness) -> None:
    gate = Gate()
    harness.source.script = [gate]
    go.set()
    (entry,) = harness.put("pays")
    await gate.reached.wait()
    live = harness.bucket_worker.job_table.get(entry.id)
    assert live is not None
    for _ in range(3):
        harness.bucket_worker.executor.stop_job(live, StopCause.TIMEOUT)
        await turns()
    gate.opened.set()
    await harness.settled()
    assert (harness.state(entry), harness.source.effects) == ("SUCCEEDED", ["wrote"])


async def test_one_that_swallows_its_cancellation_is_asked_again(harness: TransactionalHarness) -> None:
    (entry,) = harness.put("holds_out")
    await until(lambda: harness.bucket_worker.executor.running == 1)
    await turns()
    harness.clock.now += 101.0
    harness.trust()
    await until(lambda: log == ["asked"])
    harness.clock.now += 3.0
    await until(lambda: log == ["asked", "asked"])
    go.set()
    await harness.settled()
    assert harness.state(entry) == "SUCCEEDED"


async def test_a_bucket_lost_while_it_runs_takes_everything_back(harness: TransactionalHarness) -> None:
    bucket = harness.bucket()
    entry = Entry(new_id(), 1, "pays", b"{}")
    harness.submit(bucket, [entry])
    await until(lambda: log)
    harness.bucket_worker.forget(bucket.fence.bucket_id, "on request of the test")
    await until(lambda: harness.bucket_worker.executor.running == 0)
    await turns()
    assert harness.source.rolled_back == 1
    assert (harness.state(entry), harness.source.effects, harness.master.attempts) == ("none", [], [])


async def test_no_row_in_flight_is_written_while_it_commits(harness: TransactionalHarness) -> None:
    gate = Gate()
    harness.source.script = [gate]
    go.set()
    harness.put("pays")
    await gate.reached.wait()
    harness.clock.now += 1.0
    await harness.bucket_worker.in_flight_writer.tick()
    assert not harness.master.of("persist")
    gate.opened.set()
    await harness.settled()


async def test_past_the_lease_nothing_is_committed_and_no_attempt_is_used_up(harness: TransactionalHarness) -> None:
    (entry,) = harness.put("pays")
    await until(lambda: log)
    harness.expire()
    go.set()
    await until(lambda: harness.bucket_worker.executor.running == 0)
    harness.trust()
    await harness.settled()
    assert harness.state(entry) == "HELD"
    assert (harness.source.effects, harness.master.attempts) == ([], [])


async def test_one_that_cannot_have_a_transaction_is_given_back(harness: TransactionalHarness) -> None:
    harness.source.down = True
    (entry,) = harness.put("pays")
    await until(lambda: harness.state(entry) == "HELD")
    assert not harness.master.attempts


async def test_a_graceful_exit_gives_it_back_with_nothing_done(harness: TransactionalHarness) -> None:
    bucket = harness.bucket()
    entry = Entry(new_id(), 1, "pays", b"{}")
    harness.submit(bucket, [entry])
    await until(lambda: log)
    assert await harness.bucket_worker.complete([bucket.fence.bucket_id], 0.0, "on request of the test") == []
    assert (harness.state(entry), harness.source.effects, harness.master.attempts) == ("HELD", [], [])


# ---------------------------------------------------------------- worker processes


async def in_worker(harness: TransactionalHarness, result: AttemptResult, *, recorded: bool = False) -> Entry:
    """A worker process ended like this; perhaps its commit had happened."""
    (entry,) = harness.put("process")
    await until(lambda: entry.id in harness.pool.orders)
    live = harness.bucket_worker.job_table.get(entry.id)
    assert live is not None
    if recorded:
        row = harness.bucket_worker.outcome_builder.success_row(live, 0.0)
        harness.master._conclude(row)
    harness.pool.orders[entry.id][0].set_result(result)
    await until(lambda: harness.bucket_worker.executor.running == 0)
    return entry


async def test_a_worker_that_committed_is_not_reported_again(harness: TransactionalHarness) -> None:
    done = AttemptResult(kind=ResultKind.OK, result=b"1", conclusion=Conclusion.COMMITTED)
    entry = await in_worker(harness, done, recorded=True)
    await harness.settled()
    assert len(harness.master.finals) == 1
    assert harness.state(entry) == "SUCCEEDED"
    assert not harness.master.of("copy_final")


@pytest.mark.parametrize("kind", [ResultKind.CRASHED, ResultKind.TIMEOUT, ResultKind.CANCELLED])
@pytest.mark.parametrize("recorded", [True, False])
async def test_the_outcome_of_a_worker_that_died_is_read_from_the_row(
    harness: TransactionalHarness, kind: ResultKind, recorded: bool
) -> None:
    dead = AttemptResult(kind=kind, error=ErrorInfo(type="X", message="x", reason="crashed"))
    entry = await in_worker(harness, dead, recorded=recorded)
    await until(lambda: is_idle(harness.bucket_worker))
    assert (harness.state(entry) == "SUCCEEDED") is recorded
    assert bool(harness.master.attempts) is (not recorded and kind is not ResultKind.CANCELLED)
    assert harness.bucket_worker.outcome_writer.refused == 0


async def test_a_worker_that_was_refused_has_ended_as_superseded(harness: TransactionalHarness) -> None:
    refused = AttemptResult(kind=ResultKind.OK, result=b"1", conclusion=Conclusion.REFUSED)
    entry = await in_worker(harness, refused)
    await harness.settled()
    assert harness.state(entry) == "none"
    assert harness.bucket_worker.outcome_writer.refused == 1


async def test_a_worker_whose_handler_did_without_is_reported_as_usual(harness: TransactionalHarness) -> None:
    entry = await in_worker(harness, AttemptResult(kind=ResultKind.OK, result=b"1"))
    await harness.settled()
    assert harness.state(entry) == "SUCCEEDED"
    assert harness.batched() == 1
