"""Circuit breakers in the master: reports, evaluation, half-open trials, and what agents have to obey."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from jobmaster.clock import new_id
from jobmaster.master.master import Master
from jobmaster.model.flow.breaker import BreakerRule, BreakerState, TrialResult
from jobmaster.model.job import NewJob
from jobmaster.model.pause import PauseKind
from jobmaster.ports import FetchScope
from tests.integration.postgres.conftest import SETTINGS
from tests.integration.postgres.fixture import LANE, PRIORITY, SCHEMA, MasterFixture, uuids

RULE = BreakerRule("stripe", 0.5, 30.0, 4, 60.0, 2)
NAMES = ["stripe"]
DEPTH = 1000


@pytest.fixture
async def second(db: MasterFixture) -> AsyncIterator[Master]:
    """The connections of another agent."""
    master = await Master.connect(dsn=db.dsn, schema=SCHEMA, settings=SETTINGS, application_name="second")
    yield master
    await master.close()


@pytest.fixture
async def declared(db: MasterFixture) -> MasterFixture:
    await db.master.breakers.declare(db.owner, [RULE], {"charge": "stripe", "refund": "stripe"})
    await db.sql.execute("UPDATE agent SET handlers = '{charge,refund,plain}'")
    return db


class Reporter:
    """An agent that reports."""

    def __init__(self, db: MasterFixture) -> None:
        self._db = db
        self.id = new_id()
        self.number = 0

    async def report(self, calls: int, failures: int, trials: dict[bytes, bool] | None = None) -> None:
        self.number += 1
        await self.again(calls, failures, trials)

    async def again(self, calls: int, failures: int, trials: dict[bytes, bool] | None = None) -> None:
        ended = [TrialResult("stripe", job_id, 0, failed) for job_id, failed in (trials or {}).items()]
        assert await self._db.master.breakers.report(self.id, self.number, {"stripe": (calls, failures)}, ended) == []


async def state(db: MasterFixture) -> BreakerState:
    (view,) = await db.master.breakers.list("stripe")
    return view.state


def held(count: int, handler: str = "charge", due_us: int | None = None) -> list[NewJob]:
    due = int((time.time() - 90.0) * 1e6) if due_us is None else due_us
    return [NewJob(new_id(), PRIORITY, LANE, handler, b"{}", b"", due + place) for place in range(count)]


async def trial_ids(db: MasterFixture) -> set[bytes]:
    (line,) = [each for each in (await db.master.pauses.in_force()).pauses if each.kind is PauseKind.BREAKER]
    return set(line.trials)


async def opened(db: MasterFixture) -> None:
    await Reporter(db).report(10, 10)
    (change,) = await db.master.breakers.evaluate(NAMES)
    assert change.state is BreakerState.OPEN


async def half_opened(db: MasterFixture) -> None:
    await opened(db)
    await db.sql.execute("UPDATE breaker SET until = clock_timestamp() WHERE name = 'stripe'")
    (change,) = await db.master.breakers.half_open()
    assert change.state is BreakerState.HALF_OPEN


@pytest.mark.parametrize(
    ("counts", "opens"),
    [
        ([(3, 3)], False),
        ([(4, 1)], False),
        ([(4, 2)], True),
        ([(2, 2), (2, 0)], True),
        ([(100, 49)], False),
        ([(4, 0)], False),
    ],
)
async def test_a_breaker_opens_by_the_runs_of_all_agents_in_its_window(
    declared: MasterFixture, counts: list[tuple[int, int]], opens: bool
) -> None:
    for calls, failures in counts:
        await Reporter(declared).report(calls, failures)
    changes = await declared.master.breakers.evaluate(NAMES)
    assert [change.state for change in changes] == ([BreakerState.OPEN] if opens else [])
    assert await state(declared) is (BreakerState.OPEN if opens else BreakerState.CLOSED)
    assert await declared.master.breakers.evaluate(NAMES) == [], "evaluated once"


async def test_a_report_that_is_sent_again_counts_once(declared: MasterFixture) -> None:
    reporter = Reporter(declared)
    await reporter.report(2, 2)
    await reporter.again(2, 2)
    assert await declared.master.breakers.evaluate(NAMES) == []
    await reporter.report(2, 2)
    assert len(await declared.master.breakers.evaluate(NAMES)) == 1


async def test_runs_before_the_window_and_before_the_last_change_do_not_count(declared: MasterFixture) -> None:
    await Reporter(declared).report(10, 10)
    await declared.sql.execute("UPDATE breaker_result SET at = at - interval '31 seconds'")
    assert await declared.master.breakers.evaluate(NAMES) == []
    await opened(declared)
    assert await declared.master.breakers.set_state("stripe", BreakerState.CLOSED, None, "test", "mended")
    assert await declared.master.breakers.evaluate(NAMES) == [], "the runs of before it was closed"


async def test_an_agent_deletes_its_own_results_that_no_window_holds(declared: MasterFixture) -> None:
    one, other = Reporter(declared), Reporter(declared)
    await one.report(1, 0)
    await other.report(1, 0)
    await declared.sql.execute("UPDATE breaker_result SET at = at - interval '31 seconds'")
    await one.report(1, 0)
    rows = await declared.sql.fetch("SELECT agent_id, number FROM breaker_result ORDER BY number")
    assert {(row["agent_id"], row["number"]) for row in rows} == {(*uuids([one.id]), 2), (*uuids([other.id]), 1)}
    await declared.sql.execute("UPDATE breaker_result SET at = at - interval '3 hours'")
    assert await declared.master.breakers.forget() == 2


async def test_of_agents_that_evaluate_at_once_one_opens_it(declared: MasterFixture, second: Master) -> None:
    """``FROM wanted`` alone would be computed before the wait for the row."""
    await Reporter(declared).report(10, 10)
    answers = await asyncio.gather(*(master.breakers.evaluate(NAMES) for master in (declared.master, second) * 4))
    assert sum(map(len, answers)) == 1


async def test_agents_are_shown_an_open_breaker_as_a_pause_of_its_handlers(declared: MasterFixture) -> None:
    before = await declared.master.pauses.in_force()
    assert before.pauses == ()
    await opened(declared)
    after = await declared.master.pauses.in_force()
    assert after.version > before.version
    (line,) = after.pauses
    assert (line.kind, line.value, line.trials) == (PauseKind.BREAKER, "stripe", ())
    assert line.left_seconds is None, "no agent ends it by its own clock"
    assert line.covers("charge", LANE, "medium")
    assert not line.covers("other", LANE, "medium")
    assert line.until_us is not None
    assert "10 of 10 runs have failed" in line.reason


async def test_an_open_breaker_becomes_half_open_when_its_time_is_over_and_not_before(declared: MasterFixture) -> None:
    await opened(declared)
    assert await declared.master.breakers.half_open() == []
    (look,) = await declared.master.breakers.choose_trials(DEPTH)
    assert (look.chosen, look.left_seconds is not None and 50.0 < look.left_seconds <= 60.0) == (0, True)
    await declared.sql.execute("UPDATE breaker SET until = clock_timestamp()")
    (change,) = await declared.master.breakers.half_open()
    assert change.state is BreakerState.HALF_OPEN
    assert await declared.master.breakers.half_open() == []


async def test_never_more_trials_than_the_rule_allows(declared: MasterFixture, second: Master) -> None:
    await half_opened(declared)
    jobs = held(6)
    await declared.master.intake.insert_held([*jobs, *held(3, "other")])
    for _ in range(3):
        await asyncio.gather(*(master.breakers.choose_trials(DEPTH) for master in (declared.master, second) * 4))
    assert await trial_ids(declared) == {job.id for job in jobs[:2]}, "the oldest two"


async def test_leaders_that_choose_at_once_choose_together_what_one_chooses(
    declared: MasterFixture, second: Master
) -> None:
    """Each has read other jobs before it waits for the row."""
    await half_opened(declared)
    jobs = held(2)
    await declared.master.intake.insert_held(jobs)
    await declared.sql.execute("BEGIN")
    await declared.sql.execute("SELECT FROM pause_version FOR UPDATE")
    first = asyncio.ensure_future(second.breakers.choose_trials(DEPTH))
    await declared.waiting("breakers/choose_trials")
    await declared.master.intake.insert_held(held(2, due_us=int((time.time() - 900.0) * 1e6)))
    other = asyncio.ensure_future(declared.master.breakers.choose_trials(DEPTH))

    await declared.waiting("breakers/choose_trials", 2)
    await declared.sql.execute("COMMIT")
    await asyncio.gather(first, other)
    assert await trial_ids(declared) == {job.id for job in jobs}


async def test_trials_that_succeed_close_the_breaker_and_one_that_fails_opens_it(declared: MasterFixture) -> None:
    await half_opened(declared)
    jobs = held(4)
    await declared.master.intake.insert_held(jobs)
    await declared.master.breakers.choose_trials(DEPTH)
    reporter = Reporter(declared)
    await reporter.report(1, 0, {jobs[0].id: False})
    assert await declared.master.breakers.evaluate(NAMES) == [], "one of two"
    (look,) = await declared.master.breakers.choose_trials(DEPTH)
    assert (look.chosen, look.waits) == (0, True), "two have succeeded or are under way"
    await reporter.report(1, 0, {jobs[1].id: False})
    (change,) = await declared.master.breakers.evaluate(NAMES)
    assert change.state is BreakerState.CLOSED
    assert (await declared.master.pauses.in_force()).pauses == ()
    await half_opened(declared)
    await declared.master.breakers.choose_trials(DEPTH)
    await reporter.report(1, 1, {jobs[0].id: True})
    (change,) = await declared.master.breakers.evaluate(NAMES)
    assert (change.state, change.reason) == (BreakerState.OPEN, "1 of 1 trials have failed")
    await reporter.report(1, 0, {jobs[1].id: False})
    assert await declared.master.breakers.evaluate(NAMES) == [], "the end of a trial of before"


async def test_where_no_job_waits_one_success_is_enough(declared: MasterFixture) -> None:
    await half_opened(declared)
    (job,) = held(1)
    await declared.master.intake.insert_held([job])
    (look,) = await declared.master.breakers.choose_trials(DEPTH)
    assert look.waits
    (view,) = await declared.master.breakers.list()
    assert view.trial_jobs == (*uuids([job.id]),)
    await Reporter(declared).report(1, 0, {job.id: False})
    assert await declared.master.breakers.evaluate(NAMES) == []
    await declared.sql.execute("UPDATE job SET state = 'CANCELLED'")
    (look,) = await declared.master.breakers.choose_trials(DEPTH)
    assert not look.waits
    (change,) = await declared.master.breakers.evaluate(NAMES, nobody_waits=True)
    assert change.state is BreakerState.CLOSED


async def test_trials_that_nobody_reports_give_their_place_back(declared: MasterFixture) -> None:
    """They were cancelled, or put off by their handler, or their agent has died after the end of the run."""
    await half_opened(declared)
    jobs = held(5)
    await declared.master.intake.insert_held(jobs)
    await declared.master.breakers.choose_trials(DEPTH)
    await declared.sql.execute("UPDATE job SET state = 'CANCELLED' WHERE id = $1", *uuids([jobs[0].id]))
    await declared.sql.execute("UPDATE job SET due_at = now() + interval '1 h' WHERE id = $1", *uuids([jobs[1].id]))
    (look,) = await declared.master.breakers.choose_trials(DEPTH)
    assert look.chosen == 2
    assert await trial_ids(declared) == {jobs[2].id, jobs[3].id}
    await declared.sql.execute(
        "UPDATE job SET state = 'SUCCEEDED' WHERE id = ANY ($1)", uuids([jobs[2].id, jobs[3].id])
    )
    await declared.master.breakers.choose_trials(DEPTH)
    (change,) = await declared.master.breakers.evaluate(NAMES)
    assert change.state is BreakerState.CLOSED, "what a trial has recorded counts without a report"


@pytest.mark.parametrize("state", ["HELD", "ASSIGNED"])
async def test_a_trial_that_does_not_start_gives_its_place_to_another_job_for_a_minute(
    declared: MasterFixture, state: str
) -> None:
    """A limit is full, a tag is paused, or an earlier job of its ordering key is no trial."""
    await half_opened(declared)
    jobs = held(4)
    await declared.master.intake.insert_held(jobs)
    await declared.master.breakers.choose_trials(DEPTH)
    if state == "ASSIGNED":
        await declared.sql.execute(
            "UPDATE job SET state = 'ASSIGNED', bucket_id = $2, bucket_epoch = 1 WHERE id = ANY ($1)",
            uuids([job.id for job in jobs[:2]]), *uuids([declared.fence.bucket_id]),
        )  # fmt: skip
    await declared.sql.execute("UPDATE breaker_trial SET chosen_at = now() - interval '29 seconds'")
    await declared.master.breakers.choose_trials(DEPTH)
    assert await trial_ids(declared) == {job.id for job in jobs[:2]}
    await declared.sql.execute("UPDATE breaker_trial SET chosen_at = now() - interval '31 seconds'")
    (look,) = await declared.master.breakers.choose_trials(DEPTH)
    assert (look.chosen, look.waits) == (2, True)
    assert await trial_ids(declared) == {job.id for job in jobs[2:]}
    await declared.sql.execute("UPDATE job SET state = 'HELD', bucket_id = NULL, bucket_epoch = NULL")
    await declared.sql.execute(
        "UPDATE breaker_trial SET chosen_at = now() - interval '2 minutes', passed_at = passed_at - interval '61 seconds'"
    )
    await declared.master.breakers.choose_trials(DEPTH)
    assert await trial_ids(declared) == {job.id for job in jobs[:2]}, "its turn again"


async def test_a_trial_that_runs_keeps_its_place_however_long(declared: MasterFixture) -> None:
    await half_opened(declared)
    jobs = held(3)
    await declared.master.intake.insert_held(jobs)
    await declared.master.breakers.choose_trials(DEPTH)
    await declared.sql.execute(
        "UPDATE job SET state = 'PROCESSING', bucket_id = $2, bucket_epoch = 1 WHERE id = ANY ($1)",
        uuids([job.id for job in jobs[:2]]), *uuids([declared.fence.bucket_id]),
    )  # fmt: skip
    await declared.sql.execute("UPDATE breaker_trial SET chosen_at = now() - interval '1 day'")
    (look,) = await declared.master.breakers.choose_trials(DEPTH)
    assert (look.chosen, look.waits) == (0, True)


@pytest.mark.parametrize(
    "hindrance",
    [
        "INSERT INTO pause (kind, value, actor, reason, at) VALUES ('lane', 'default', 'a', '', now())",
        "INSERT INTO pause (kind, value, actor, reason, at) VALUES ('priority', 'medium', 'a', '', now())",
        "INSERT INTO pause (kind, value, actor, reason, at) VALUES ('handler', 'charge', 'a', '', now())",
        "UPDATE agent SET handlers = '{refund}'",
        "UPDATE bucket SET state = 'LOST'",
    ],
)
async def test_no_job_that_cannot_start_where_it_waits_is_chosen(declared: MasterFixture, hindrance: str) -> None:
    await half_opened(declared)
    await declared.master.intake.insert_held(held(3))
    await declared.sql.execute(hindrance)
    (look,) = await declared.master.breakers.choose_trials(DEPTH)
    assert (look.chosen, look.waits) == (0, False)


async def test_a_look_reads_no_more_than_the_oldest_jobs(declared: MasterFixture) -> None:
    await half_opened(declared)
    (job,) = held(1)
    others = held(3, "plain", due_us=job.due_us - 1000)
    await declared.master.intake.insert_held([*others, job])
    (look,) = await declared.master.breakers.choose_trials(3)
    assert (look.chosen, look.waits) == (0, False)
    (look,) = await declared.master.breakers.choose_trials(4)
    assert look.chosen == 1


async def test_the_end_of_another_run_is_no_result_of_a_trial(declared: MasterFixture) -> None:
    """The report of an earlier attempt arrives after the job was chosen for its next one."""
    await half_opened(declared)
    (job,) = held(1)
    await declared.master.intake.insert_held([job])
    await declared.sql.execute("UPDATE job SET attempt = 1")
    await declared.master.breakers.choose_trials(DEPTH)
    await Reporter(declared).report(1, 1, {job.id: True})
    assert await declared.master.breakers.evaluate(NAMES) == []
    await declared.master.breakers.report(new_id(), 1, {"stripe": (1, 1)}, [TrialResult("stripe", job.id, 1, True)])
    (change,) = await declared.master.breakers.evaluate(NAMES)
    assert change.state is BreakerState.OPEN


async def test_an_agent_has_few_lines_however_long_the_window_is(declared: MasterFixture) -> None:
    long = RULE._replace(window_seconds=3600.0)
    await declared.master.breakers.declare(await declared.agent(new_id()), [long], {})
    reporter = Reporter(declared)
    for _ in range(3):
        await reporter.report(2, 1)
        await reporter.again(2, 1)
    rows = await declared.sql.fetch("SELECT number, calls, failures FROM breaker_result")
    assert [tuple(row) for row in rows] == [(3, 6, 3)]
    await declared.sql.execute("UPDATE breaker_result SET at = at - interval '61 seconds'")
    await reporter.report(2, 1)
    assert await declared.sql.fetchval("SELECT count(*) FROM breaker_result") == 2
    assert await declared.master.breakers.set_state("stripe", BreakerState.CLOSED, None, "test", "mended")
    await reporter.report(2, 1)
    (view,) = await declared.master.breakers.list()
    assert (view.calls, view.failed) == (2, 1), "what was counted before it was closed stays apart"


async def test_a_report_names_the_breakers_that_the_master_does_not_know(declared: MasterFixture) -> None:
    counts = {"stripe": (1, 1), "lost": (1, 1)}
    assert await declared.master.breakers.report(new_id(), 1, counts, []) == ["lost"]


async def test_closed_breakers_of_handlers_that_no_agent_has_are_forgotten(declared: MasterFixture) -> None:
    await declared.sql.execute(
        "UPDATE breaker SET changed_at = now() - interval '2 d', declared_at = now() - interval '2 d'"
    )
    await declared.master.breakers.forget()
    assert len(await declared.master.breakers.list()) == 1, "an agent has its handlers"
    await declared.sql.execute("UPDATE agent SET handlers = '{plain}'")
    await declared.sql.execute("UPDATE breaker SET state = 'OPEN'")
    await declared.master.breakers.forget()
    assert len(await declared.master.breakers.list()) == 1, "an operator has opened it"
    await declared.sql.execute("UPDATE breaker SET state = 'CLOSED'")
    await declared.master.breakers.forget()
    assert await declared.master.breakers.list() == []
    assert await declared.sql.fetchval("SELECT count(*) FROM breaker_handler") == 0


async def test_onboarding_takes_trials_and_leaves_the_other_jobs_of_their_handler(declared: MasterFixture) -> None:
    await half_opened(declared)
    jobs, plain = held(4), held(1, "plain")
    await declared.master.intake.insert_held([*jobs, *plain])
    await declared.master.breakers.choose_trials(DEPTH)
    ids = sorted(await trial_ids(declared))
    answer = await declared.master.onboarding.onboard(
        declared.fence, LANE, PRIORITY, 0.0, 10, ["plain"], (), FetchScope(None, ids, ["charge"])
    )
    assert {entry.id for entry in answer.entries} == {plain[0].id, *ids}
    answer = await declared.master.onboarding.onboard(
        declared.fence, LANE, PRIORITY, 0.0, 10, ["plain"], (), FetchScope(None, [job.id for job in jobs], ["refund"])
    )
    assert answer.entries == [], "this owner has not the handler of the trial"


async def test_jobs_of_an_open_breaker_are_put_off_until_it_is_half_open(declared: MasterFixture) -> None:
    jobs = held(3)
    await declared.master.intake.insert_held(jobs)
    await opened(declared)
    assert await declared.master.unserved.put_off_paused(60.0, 3600.0, 100) == 3
    assert await declared.master.unserved.put_back(100) == 0
    left = await declared.sql.fetchval("SELECT max(j.due_at - b.until) FROM job j, breaker b")
    assert left.total_seconds() == 0.0, "due again when the breaker is half-open"
    await declared.master.pauses.pause(PauseKind.HANDLER, "charge", None, None, "test", "both")
    await declared.sql.execute("UPDATE job SET due_at = now() - interval '2 minutes'")
    assert await declared.master.unserved.put_off_paused(60.0, 3600.0, 100) == 3, "paused and broken"
    await declared.master.pauses.resume(PauseKind.HANDLER, "charge", "test", "")
    await declared.master.breakers.set_state("stripe", BreakerState.CLOSED, None, "test", "mended")
    assert await declared.master.unserved.put_back(100) == 3
    assert await declared.sql.fetchval("SELECT count(*) FROM job WHERE due_at > now()") == 0


async def test_the_numbers_of_an_agent_that_started_later_stand(declared: MasterFixture) -> None:
    later = await declared.agent(new_id())
    other = RULE._replace(min_calls=7)
    await declared.master.breakers.declare(later, [other], {"charge": "stripe"})
    await opened(declared)
    await declared.master.breakers.declare(declared.owner, [RULE], {"charge": "stripe", "refund": "stripe"})
    (view,) = await declared.master.breakers.list()
    assert (view.min_calls, view.state) == (7, BreakerState.OPEN)
    assert view.handlers == ("charge", "refund")
    assert (view.calls, view.failed, view.trial_jobs, view.succeeded) == (0, 0, (), 0)


async def test_an_operator_opens_and_closes_and_the_log_has_it(declared: MasterFixture) -> None:
    breakers = declared.master.breakers
    assert await breakers.set_state("no-such", BreakerState.OPEN, None, "ann", "") is None
    assert await breakers.set_state("stripe", BreakerState.OPEN, None, "ann", "maintenance") is not None
    (view,) = await breakers.list("stripe")
    assert (view.state, view.until_us, view.actor, view.reason) == (BreakerState.OPEN, None, "ann", "maintenance")
    assert await breakers.choose_trials(DEPTH) == [], "the leader has nothing to look at"
    assert await breakers.half_open() == []
    assert await breakers.set_state("stripe", BreakerState.CLOSED, None, "bob", "") is not None
    rows = await declared.sql.fetch("SELECT actor, action, subject FROM operator_log ORDER BY at")
    assert [tuple(row) for row in rows] == [("ann", "breaker_open", "stripe"), ("bob", "breaker_close", "stripe")]


async def test_an_operator_who_has_seen_another_state_changes_nothing(declared: MasterFixture, second: Master) -> None:
    """The leader's decision is committed while the operator's change waits behind it."""
    (seen,) = await declared.master.breakers.list("stripe")
    await Reporter(declared).report(10, 10)
    async with declared.open_transaction("breakers/evaluate", NAMES, False) as commit:
        change = second.breakers.set_state("stripe", BreakerState.CLOSED, None, "ann", "is well", seen.epoch)
        assert await declared.after_lock("breakers/set_state", change, commit) is None
    (view,) = await declared.master.breakers.list("stripe")
    assert (view.state, view.actor, view.epoch > seen.epoch) == (BreakerState.OPEN, "breaker", True)
    assert await declared.sql.fetchval("SELECT count(*) FROM operator_log") == 0
    change = second.breakers.set_state("stripe", BreakerState.CLOSED, None, "ann", "is well", view.epoch)
    assert await change is not None
    assert await state(declared) is BreakerState.CLOSED


async def test_what_was_counted_before_an_operator_s_change_opens_nothing(
    declared: MasterFixture, second: Master
) -> None:
    """The operator's change is committed while the decision by the older counts waits behind it."""
    await Reporter(declared).report(10, 10)
    async with declared.open_transaction(
        "breakers/set_state", "stripe", "CLOSED", None, "ann", "mended", None
    ) as commit:
        assert await declared.after_lock("breakers/evaluate", second.breakers.evaluate(NAMES), commit) == []
    (view,) = await declared.master.breakers.list("stripe")
    assert (view.state, view.actor) == (BreakerState.CLOSED, "ann")
    await half_opened(declared)
    await declared.sql.execute("UPDATE breaker SET state = 'OPEN', until = clock_timestamp()")
    async with declared.open_transaction("breakers/set_state", "stripe", "OPEN", None, "bob", "keep", None) as commit:
        assert await declared.after_lock("breakers/half_open", second.breakers.half_open(), commit) == []
    (view,) = await declared.master.breakers.list("stripe")
    assert (view.state, view.actor, view.until_us) == (BreakerState.OPEN, "bob", None)
