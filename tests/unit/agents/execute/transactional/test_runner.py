"""Transactional handlers: when their outcome is committed, and the outcome of every other end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from jobmaster.clock import new_id
from jobmaster.codec import decode_error
from jobmaster.model.job import Conclusion, Entry, ErrorInfo
from jobmaster_agents import until_answered
from jobmaster_agents.execute.attempt_result import AttemptResult, ResultKind
from jobmaster_agents.outcomes.outcome_builder import StopCause
from tests.support.bucket_worker_fixture import DOWN, LOST, Gate, Row, turns
from tests.support.fake_transactions import TransactionalKit, go, log
from tests.support.idle import is_idle
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(until_answered, "BACKOFF_SECONDS", 0.0)
    log.clear()
    go.clear()


@pytest.fixture
async def kit() -> AsyncIterator[TransactionalKit]:
    async with TransactionalKit() as made:
        yield made
        go.set()


async def test_it_is_committed_after_the_handler_has_returned_and_reported_once(kit: TransactionalKit) -> None:
    (entry,) = kit.put("pays")
    await until(lambda: log)
    await turns()
    assert (kit.state(entry), kit.source.effects) == ("none", []), "the end of the block commits nothing"
    go.set()
    await kit.settled()
    (row,) = kit.master.finals
    assert (row.state, row.result, row.attempt) == ("SUCCEEDED", b'"paid"', 1)
    assert kit.source.effects == ["wrote"]
    assert not kit.master.of("copy_final")
    assert kit.bucket_worker._telemetry.transactions == {"committed": 1}


async def test_others_of_the_bucket_do_not_wait_for_it(kit: TransactionalKit) -> None:
    gate = Gate()
    kit.source.script = [gate]
    go.set()
    slow, *others = kit.put("pays", *["plain"] * 20)
    await gate.reached.wait()
    await until(lambda: all(kit.state(entry) == "SUCCEEDED" for entry in others))
    assert kit.state(slow) == "none"
    gate.opened.set()
    await kit.settled()
    assert kit.state(slow) == "SUCCEEDED"


async def test_no_more_run_at_once_than_there_are_connections(kit: TransactionalKit) -> None:
    kit.put(*["pays"] * 5)
    await until(lambda: len(log) == 2)
    await turns()
    assert len(log) == 2
    go.set()
    await kit.settled()
    assert len(kit.source.effects) == 5
    assert kit.bucket_worker.executor.running == 0


@pytest.mark.parametrize("name", ["fails_inside", "fails_after", "twice", "too_large", "exits"])
async def test_whatever_goes_wrong_takes_the_effects_back(kit: TransactionalKit, name: str) -> None:
    (entry,) = kit.put(name)
    await kit.settled()
    assert kit.state(entry) == "FAILED"
    assert (kit.source.effects, kit.source.rolled_back) == ([], 1)
    said = {"twice": "once in an attempt", "too_large": "the limit is"}.get(name)
    assert said is None or said in kit.error(entry).message


async def test_a_handler_that_copes_with_a_failed_block_succeeds_the_usual_way(kit: TransactionalKit) -> None:
    entries = kit.put("copes", "does_without")
    await kit.settled()
    assert [kit.state(entry) for entry in entries] == ["SUCCEEDED"] * 2
    assert kit.batched() == 2


async def test_without_the_declaration_it_is_a_clear_error(kit: TransactionalKit) -> None:
    (entry,) = kit.put("not_declared")
    await kit.settled()
    assert "transactional=True" in kit.error(entry).message


async def test_a_commit_that_the_server_refuses_is_a_failed_attempt(kit: TransactionalKit) -> None:
    kit.source.script = [RuntimeError("violates a deferred constraint")]
    go.set()
    (entry,) = kit.put("pays")
    await until(lambda: kit.master.attempts)
    assert kit.state(entry) == "ASSIGNED", "tried again"
    assert kit.source.effects == []


@pytest.mark.parametrize("look", [None, DOWN], ids=["at once", "when the master answers again"])
async def test_a_lost_answer_to_a_commit_is_found_on_the_row(kit: TransactionalKit, look: Any) -> None:
    kit.source.script = [LOST]
    kit.master.script["is_recorded"] += [look, None]
    go.set()
    (entry,) = kit.put("pays")
    await kit.settled()
    assert (kit.state(entry), kit.source.effects) == ("SUCCEEDED", ["wrote"])
    assert len(kit.master.finals) == 1
    assert not kit.master.attempts
    assert kit.bucket_worker._telemetry.transactions == {"unknown": 1, "committed": 1}


async def test_a_commit_that_did_not_happen_is_another_attempt(kit: TransactionalKit) -> None:
    kit.source.script = [DOWN]
    go.set()
    (entry,) = kit.put("pays")
    await until(lambda: kit.master.attempts)
    (attempt,) = kit.master.attempts
    assert attempt.error is not None
    assert decode_error(attempt.error).type == "CommitLost"
    kit.clock.now += 8.0
    kit.trust()
    await until(lambda: kit.state(entry) == "ASSIGNED")
    assert kit.source.effects == []


async def test_a_commit_that_happens_after_the_look_refuses_what_is_written_instead(kit: TransactionalKit) -> None:
    kit.source.script = [LOST]
    kit.master.script["is_recorded"].append(False)
    go.set()
    (entry,) = kit.put("pays")
    await kit.settled()
    assert (kit.state(entry), kit.source.effects) == ("SUCCEEDED", ["wrote"])
    assert not kit.master.attempts
    assert kit.bucket_worker.outcome_writer.refused == 1


async def test_a_superseded_attempt_is_rolled_back_counted_and_traced(kit: TransactionalKit) -> None:
    gate = Gate()
    kit.source.script = [gate]
    go.set()
    (entry,) = kit.put("pays")
    await gate.reached.wait()
    kit.master.rows[entry.id] = Row("HELD", 2)
    gate.opened.set()
    await kit.settled()
    assert kit.state(entry) == "HELD"
    assert kit.source.effects == []
    assert kit.bucket_worker.outcome_writer.refused == 1
    assert len(kit.master.of("mark_refused")) == 1
    assert not kit.master.finals


async def test_a_time_out_rolls_back_and_is_a_failed_attempt(kit: TransactionalKit) -> None:
    (entry,) = kit.put("pays")
    await until(lambda: log)
    kit.clock.now += 101.0
    kit.trust()
    await until(lambda: kit.master.attempts)
    assert kit.source.rolled_back == 1
    assert kit.source.effects == []
    assert kit.state(entry) == "ASSIGNED"


async def test_a_time_out_that_comes_during_the_commit_disturbs_nothing(kit: TransactionalKit) -> None:
    gate = Gate()
    kit.source.script = [gate]
    go.set()
    (entry,) = kit.put("pays")
    await gate.reached.wait()
    live = kit.bucket_worker.job_table.get(entry.id)
    assert live is not None
    for _ in range(3):
        kit.bucket_worker.executor.stop_job(live, StopCause.TIMEOUT)
        await turns()
    gate.opened.set()
    await kit.settled()
    assert (kit.state(entry), kit.source.effects) == ("SUCCEEDED", ["wrote"])


async def test_one_that_swallows_its_cancellation_is_asked_again(kit: TransactionalKit) -> None:
    (entry,) = kit.put("holds_out")
    await until(lambda: kit.bucket_worker.executor.running == 1)
    await turns()
    kit.clock.now += 101.0
    kit.trust()
    await until(lambda: log == ["asked"])
    kit.clock.now += 3.0
    await until(lambda: log == ["asked", "asked"])
    go.set()
    await kit.settled()
    assert kit.state(entry) == "SUCCEEDED"


async def test_a_bucket_lost_while_it_runs_takes_everything_back(kit: TransactionalKit) -> None:
    bucket = kit.bucket()
    entry = Entry(new_id(), 1, "pays", b"{}")
    kit.submit(bucket, [entry])
    await until(lambda: log)
    kit.bucket_worker.forget(bucket.fence.bucket_id, "the test says so")
    await until(lambda: kit.bucket_worker.executor.running == 0)
    await turns()
    assert kit.source.rolled_back == 1
    assert (kit.state(entry), kit.source.effects, kit.master.attempts) == ("none", [], [])


async def test_no_row_in_flight_is_written_while_it_commits(kit: TransactionalKit) -> None:
    gate = Gate()
    kit.source.script = [gate]
    go.set()
    kit.put("pays")
    await gate.reached.wait()
    kit.clock.now += 1.0
    await kit.bucket_worker.in_flight_writer.tick()
    assert not kit.master.of("persist")
    gate.opened.set()
    await kit.settled()


async def test_past_the_lease_nothing_is_committed_and_no_attempt_is_used_up(kit: TransactionalKit) -> None:
    (entry,) = kit.put("pays")
    await until(lambda: log)
    kit.expire()
    go.set()
    await until(lambda: kit.bucket_worker.executor.running == 0)
    kit.trust()
    await kit.settled()
    assert kit.state(entry) == "HELD"
    assert (kit.source.effects, kit.master.attempts) == ([], [])


async def test_one_that_cannot_have_a_transaction_is_given_back(kit: TransactionalKit) -> None:
    kit.source.down = True
    (entry,) = kit.put("pays")
    await until(lambda: kit.state(entry) == "HELD")
    assert not kit.master.attempts


async def test_a_graceful_exit_gives_it_back_with_nothing_done(kit: TransactionalKit) -> None:
    bucket = kit.bucket()
    entry = Entry(new_id(), 1, "pays", b"{}")
    kit.submit(bucket, [entry])
    await until(lambda: log)
    assert await kit.bucket_worker.complete([bucket.fence.bucket_id], 0.0, "the test says so") == []
    assert (kit.state(entry), kit.source.effects, kit.master.attempts) == ("HELD", [], [])


# ---------------------------------------------------------------- worker processes


async def in_worker(kit: TransactionalKit, result: AttemptResult, *, recorded: bool = False) -> Entry:
    """A worker process ended like this; perhaps its commit had happened."""
    (entry,) = kit.put("process")
    await until(lambda: entry.id in kit.pool.orders)
    live = kit.bucket_worker.job_table.get(entry.id)
    assert live is not None
    if recorded:
        row = kit.bucket_worker.outcome_builder.success_row(live, 0.0)
        kit.master._conclude(row)
    kit.pool.orders[entry.id][0].set_result(result)
    await until(lambda: kit.bucket_worker.executor.running == 0)
    return entry


async def test_a_worker_that_committed_is_not_reported_again(kit: TransactionalKit) -> None:
    done = AttemptResult(kind=ResultKind.OK, result=b"1", conclusion=Conclusion.COMMITTED)
    entry = await in_worker(kit, done, recorded=True)
    await kit.settled()
    assert len(kit.master.finals) == 1
    assert kit.state(entry) == "SUCCEEDED"
    assert not kit.master.of("copy_final")


@pytest.mark.parametrize("kind", [ResultKind.CRASHED, ResultKind.TIMEOUT, ResultKind.CANCELLED])
@pytest.mark.parametrize("recorded", [True, False])
async def test_a_worker_that_died_is_judged_by_the_row(kit: TransactionalKit, kind: ResultKind, recorded: bool) -> None:
    dead = AttemptResult(kind=kind, error=ErrorInfo(type="X", message="x", reason="crashed"))
    entry = await in_worker(kit, dead, recorded=recorded)
    await until(lambda: is_idle(kit.bucket_worker))
    assert (kit.state(entry) == "SUCCEEDED") is recorded
    assert bool(kit.master.attempts) is (not recorded and kind is not ResultKind.CANCELLED)
    assert kit.bucket_worker.outcome_writer.refused == 0


async def test_a_worker_that_was_refused_has_ended_as_superseded(kit: TransactionalKit) -> None:
    refused = AttemptResult(kind=ResultKind.OK, result=b"1", conclusion=Conclusion.REFUSED)
    entry = await in_worker(kit, refused)
    await kit.settled()
    assert kit.state(entry) == "none"
    assert kit.bucket_worker.outcome_writer.refused == 1


async def test_a_worker_whose_handler_did_without_is_reported_as_usual(kit: TransactionalKit) -> None:
    entry = await in_worker(kit, AttemptResult(kind=ResultKind.OK, result=b"1"))
    await kit.settled()
    assert kit.state(entry) == "SUCCEEDED"
    assert kit.batched() == 1
