"""Unique keys: the job that holds a key, when the key is free again, and two submits of one key at every step."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from jobmaster.clock import new_id
from jobmaster.master.driver.connection import ConnectionFactory
from jobmaster.master.driver.statements import statement
from jobmaster.master.history.bulk_insert import Importer, Part
from jobmaster.model.errors import InputError
from jobmaster.model.flow.uniqueness import (
    OnConflict,
    UniqueAnswer,
    UniqueOutcome,
    UniqueRule,
    UniqueSubmit,
    UniqueTerm,
)
from jobmaster.ports import RecordKind
from jobmaster.settings.model import MasterSettings
from tests.integration.postgres.fixture import (
    DUE,
    SCHEMA,
    SNOOZED,
    MasterFixture,
    final_row,
    hold_row,
    in_flight_row,
    new_job,
    uuids,
)

HOUR_US = 3_600_000_000
MARKS = b'{"unique_key":"k"}'


def unique(
    term: str = "live",
    on_conflict: str = "existing",
    *,
    job_id: bytes | None = None,
    key: str = "k",
    span_us: int = HOUR_US,
    aligned: bool = False,
    passed: bytes | None = None,
    due_us: int = 0,
) -> UniqueSubmit:
    """One job of the handler of every other test, with its key."""
    rule = UniqueRule(key, UniqueTerm(term), span_us, aligned, OnConflict(on_conflict))
    return UniqueSubmit(new_job(job_id or new_id(), headers=MARKS, due_us=due_us), rule, passed)


async def submit(db: MasterFixture, one: UniqueSubmit) -> UniqueAnswer:
    (answer,) = await db.master.uniqueness.submit([one])
    return answer


async def created(db: MasterFixture, one: UniqueSubmit) -> bytes:
    """The job of a submit that finds its key free."""
    answer = await submit(db, one)
    assert answer == UniqueAnswer(UniqueOutcome.CREATED, one.job.id, None, answer.limit_us)
    return answer.job_id


async def finish(db: MasterFixture, job_id: bytes, state: str = "SUCCEEDED") -> None:
    """The job runs and ends."""
    await db.sql.execute(
        "UPDATE job SET state = 'PROCESSING', bucket_id = $2, bucket_epoch = $3 WHERE id = $1",
        *uuids([job_id, db.fence.bucket_id]), db.fence.epoch,
    )  # fmt: skip
    written = await db.master.outcomes.record_final([final_row(job_id, db.fence, state=state)])
    assert written.accepted == {job_id}


async def live_rows(db: MasterFixture) -> int:
    """Jobs that have not ended and were not replaced."""
    count: int = await db.sql.fetchval(
        "SELECT count(*) FROM job WHERE state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED')"
        " AND position('superseded_by'::bytea IN headers) = 0"
    )
    return count


async def test_a_live_key_is_held_until_its_job_has_ended_however(db: MasterFixture) -> None:
    first = await created(db, unique())
    for state in ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"):
        assert await submit(db, unique()) == UniqueAnswer(UniqueOutcome.EXISTING, first, first, 0)
        await finish(db, first, state)
        first = await created(db, unique())
    assert await live_rows(db) == 1


@pytest.mark.parametrize("state", ["HELD", "ASSIGNED", "PROCESSING", "WAITING"])
async def test_a_live_key_is_held_in_every_state_that_is_not_final(db: MasterFixture, state: str) -> None:
    first = await created(db, unique())
    where = "" if state in ("HELD", "WAITING") else ", bucket_id = gen_random_uuid(), bucket_epoch = 1"
    await db.sql.execute(f"UPDATE job SET state = '{state}'{where}")
    assert (await submit(db, unique())).job_id == first


async def test_a_live_key_of_a_job_that_was_cancelled_or_has_left_the_master_is_free(db: MasterFixture) -> None:
    first = await created(db, unique())
    await db.master.requests.cancel(first, tombstone=None, actor="test")
    second = await created(db, unique())
    await db.sql.execute("DELETE FROM job WHERE id = $1", *uuids([second]))
    await created(db, unique())


async def test_a_window_is_held_until_its_end_by_the_clock_of_the_server(db: MasterFixture) -> None:
    first = await created(db, unique("window"))
    await finish(db, first)
    assert await submit(db, unique("window")) == UniqueAnswer(UniqueOutcome.EXISTING, first, first, 0)
    await db.sql.execute("DELETE FROM job")
    assert (await submit(db, unique("window"))).job_id == first, "the key outlives the row of its job"
    await db.sql.execute("UPDATE unique_key SET until = clock_timestamp() - interval '1 microsecond'")
    await created(db, unique("window"))
    headers = (await db.view(await db_holder(db))).headers
    assert headers.unique_from_us is not None
    assert headers.unique_until_us is not None
    assert abs(headers.unique_until_us - headers.unique_from_us - HOUR_US) < 1_000


async def db_holder(db: MasterFixture, key: str = "k") -> bytes:
    """The job that holds the key."""
    holder = await db.sql.fetchval("SELECT job_id FROM unique_key WHERE key = $1", key)
    return bytes(holder.bytes)


async def test_aligned_windows_begin_at_multiples_of_their_length(db: MasterFixture) -> None:
    await created(db, unique("window", aligned=True))
    until, now = await db.sql.fetchrow("SELECT to_us(until), to_us(clock_timestamp()) FROM unique_key")  # type: ignore[misc]
    assert until % HOUR_US == 0
    assert 0 < until - now <= HOUR_US


async def test_the_terms_of_the_holder_hold_for_every_other_submit_of_the_key(db: MasterFixture) -> None:
    first = await created(db, unique("window"))
    await finish(db, first)
    assert (await submit(db, unique("live"))).job_id == first, "the window of the holder has not ended"
    await db.sql.execute("UPDATE unique_key SET until = clock_timestamp()")
    second = await created(db, unique("live"))
    assert (await submit(db, unique("window"))).job_id == second
    await finish(db, second)
    await created(db, unique("window"))


async def test_a_replaced_job_is_cancelled_and_names_the_one_that_took_its_key(db: MasterFixture) -> None:
    first = await created(db, unique(due_us=DUE))
    second = unique(on_conflict="replace", due_us=DUE)
    assert await submit(db, second) == UniqueAnswer(UniqueOutcome.REPLACED, second.job.id, first, 0)
    old = await db.view(first)
    assert (old.state, old.superseded_by, old.unique_key) == ("CANCELLED", *uuids([second.job.id]), "k")
    assert (await db.view(second.job.id)).superseded_by is None
    assert (await submit(db, unique())).job_id == second.job.id
    assert await live_rows(db) == 1


@pytest.mark.parametrize("state", ["ASSIGNED", "PROCESSING"])
async def test_a_job_in_flight_that_is_replaced_gets_a_cancel_request_and_keeps_its_mark(
    db: MasterFixture, state: str
) -> None:
    first = await created(db, unique())
    await db.sql.execute(
        f"UPDATE job SET state = '{state}', bucket_id = $1, bucket_epoch = $2",
        *uuids([db.fence.bucket_id]),
        db.fence.epoch,
    )
    second = unique(on_conflict="replace")
    assert (await submit(db, second)).outcome is UniqueOutcome.REPLACED
    assert not (await db.master.outcomes.persist(db.fence, [in_flight_row(first)])).accepted, "it starts no more"
    await db.master.outcomes.record_final([final_row(first, db.fence)])
    old = await db.view(first)
    assert (old.state, old.cancel_requested, old.superseded_by) == ("SUCCEEDED", True, *uuids([second.job.id]))


@pytest.mark.parametrize("here", [True, False])
async def test_a_replaced_job_keeps_its_mark_when_its_run_puts_it_off(db: MasterFixture, here: bool) -> None:
    """The agent has the headers of before, and counts the snooze in them."""
    first = await created(db, unique())
    await db.sql.execute(
        "UPDATE job SET state = 'PROCESSING', bucket_id = $1, bucket_epoch = $2",
        *uuids([db.fence.bucket_id]),
        db.fence.epoch,
    )
    second = unique(on_conflict="replace")
    assert (await submit(db, second)).outcome is UniqueOutcome.REPLACED
    snoozed = hold_row(first, error=SNOOZED, due_us=DUE)._replace(headers=b'{"unique_key":"k","snoozes":1}')
    write = db.master.outcomes.retry_here if here else db.master.outcomes.hold
    written = await write(db.fence, [snoozed])
    assert written.cancelled == {first}
    assert (await db.view(first)).superseded_by == uuids([second.job.id])[0]


async def test_a_window_whose_job_has_ended_cannot_be_replaced(db: MasterFixture) -> None:
    first = await created(db, unique("window"))
    await finish(db, first)
    assert (await submit(db, unique("window", "replace"))).outcome is UniqueOutcome.EXISTING
    assert len(await db.jobs()) == 1


async def test_debounce_moves_the_due_time_of_the_holder_and_not_beyond_its_limit(db: MasterFixture) -> None:
    first = await created(db, unique("waiting", "debounce", due_us=DUE))
    held_us = await db.sql.fetchval("SELECT to_us(held_at) FROM unique_key")
    for due_us, expected in ((held_us + 5_000_000, held_us + 5_000_000), (held_us + 2 * HOUR_US, held_us + HOUR_US)):
        answer = await submit(db, unique("waiting", "debounce", due_us=due_us))
        assert (answer.outcome, answer.job_id) == (UniqueOutcome.DEBOUNCED, first)
        assert (await db.view(first)).due_us == expected
    assert len(await db.jobs()) == 1


async def test_debounce_leaves_a_job_in_a_bucket_to_the_caller_and_a_started_one_alone(db: MasterFixture) -> None:
    first = await created(db, unique("waiting", "debounce"))
    assert len((await db.master.onboarding.onboard(db.fence, "default", 3, 60.0, 10)).entries) == 1
    answer = await submit(db, unique("waiting", "debounce", due_us=DUE))
    assert (answer.outcome, answer.job_id) == (UniqueOutcome.RECALL, first)
    assert answer.limit_us > 0
    second = await created(db, unique("waiting", "debounce", passed=first))
    answer = await submit(db, unique("waiting", "debounce", passed=first))
    assert answer.job_id == second, "only the holder that was found started is passed over"


async def test_a_debounced_job_that_waits_for_its_second_attempt_has_started(db: MasterFixture) -> None:
    first = await created(db, unique("waiting", "debounce", due_us=DUE))
    await db.sql.execute("UPDATE job SET attempt = 1")
    await created(db, unique("waiting", "debounce", due_us=DUE + 1))
    assert (await db.view(first)).due_us == DUE


async def test_a_debounced_job_that_its_handler_has_put_off_has_started(db: MasterFixture) -> None:
    first = await created(db, unique("waiting", "debounce", due_us=DUE))
    await db.sql.execute("""UPDATE job SET headers = '{"metadata":{"snoozes":"1"},"unique_key":"k"}'""")
    assert (await submit(db, unique("waiting", "debounce", due_us=DUE + 1))).job_id == first, "a word of a user"
    await db.sql.execute("""UPDATE job SET headers = '{"unique_key":"k","snoozes":1}'""")
    await created(db, unique("waiting", "debounce", due_us=DUE + 2))


async def test_a_submit_that_is_sent_again_changes_nothing_even_when_its_key_was_taken_since(db: MasterFixture) -> None:
    one = unique("live", "replace")
    await created(db, one)
    before = await db.jobs()
    assert (await submit(db, one)).outcome is UniqueOutcome.KNOWN
    assert await db.jobs() == before
    second = unique("live", "replace")
    assert (await submit(db, second)).outcome is UniqueOutcome.REPLACED
    before = await db.jobs()
    assert (await submit(db, one)).outcome is UniqueOutcome.KNOWN
    assert await db.jobs() == before
    assert await db_holder(db) == second.job.id


async def test_an_id_that_has_a_row_gets_no_key(db: MasterFixture) -> None:
    job_id = new_id()
    await db.master.intake.insert_held([new_job(job_id)])
    assert (await submit(db, unique(job_id=job_id))).outcome is UniqueOutcome.KNOWN
    assert await db.sql.fetchval("SELECT count(*) FROM unique_key") == 0


async def test_an_id_below_the_watermark_gets_no_key_and_replaces_nothing(db: MasterFixture) -> None:
    await db.sql.execute("BEGIN")
    try:
        ancient = bytes(6) + new_id()[6:]
        rows = await db.sql.fetch(
            "SELECT answer FROM submit_unique('handler', 'k', $1, 3::smallint, 'default', '{}', '{}', 0, 'live', 0, false,"
            " 'existing', NULL, true)",
            *uuids([ancient]),
        )
        assert [row["answer"] for row in rows] == ["refused"]
        assert await db.sql.fetchval("SELECT count(*) FROM unique_key") == 0
    finally:
        await db.sql.execute("ROLLBACK")


async def test_a_batch_with_one_key_twice_makes_one_job(db: MasterFixture) -> None:
    jobs = [unique(key=key) for key in "abab"]
    answers = await db.master.uniqueness.submit(jobs)
    outcomes = sorted(answer.outcome for answer in answers)
    assert outcomes == ["created", "created", "existing", "existing"]
    assert answers[0].job_id == answers[2].job_id
    assert answers[1].job_id == answers[3].job_id
    assert len(await db.jobs()) == 2


# ---------------------------------------------------------------- two submits of one key


async def racing(db: MasterFixture, first: UniqueSubmit, second: UniqueSubmit, *, commit: bool = True) -> UniqueAnswer:
    """The answer of the second, which began while the transaction of the first was open."""
    one = await db.connect()
    try:
        transaction = one.transaction()
        await transaction.start()
        await db.master.uniqueness.submit_in(one, first)
        ended = transaction.commit if commit else transaction.rollback
        return await db.after_lock("uniqueness/submit", submit(db, second), ended)
    finally:
        await one.close()


@pytest.mark.parametrize("term", ["live", "window", "waiting"])
async def test_the_second_of_two_waits_and_gets_the_job_of_the_first(db: MasterFixture, term: str) -> None:
    first = unique(term)
    assert (await racing(db, first, unique(term))).job_id == first.job.id
    assert await live_rows(db) == 1


async def test_the_second_of_two_gets_the_key_when_the_first_is_rolled_back(db: MasterFixture) -> None:
    second = unique()
    assert (await racing(db, unique(), second, commit=False)).outcome is UniqueOutcome.CREATED
    assert await db_holder(db) == second.job.id


@pytest.mark.parametrize("ending", ["final", "gone", "window"])
async def test_two_that_find_the_key_free_make_one_job(db: MasterFixture, ending: str) -> None:
    """The second began when the key was free for it, too: it must look again after it has waited."""
    old = await created(db, unique("window" if ending == "window" else "live"))
    if ending == "final":
        await finish(db, old)
    elif ending == "gone":
        await db.sql.execute("DELETE FROM job")
    else:
        await finish(db, old)
        await db.sql.execute("UPDATE unique_key SET until = clock_timestamp()")
    first = unique("live")
    assert await racing(db, first, unique("live")) == UniqueAnswer(
        UniqueOutcome.EXISTING, first.job.id, first.job.id, 0
    )
    assert await live_rows(db) == 1


async def test_two_that_replace_one_job_follow_each_other(db: MasterFixture) -> None:
    old = await created(db, unique())
    first, second = unique(on_conflict="replace"), unique(on_conflict="replace")
    answer = await racing(db, first, second)
    assert (answer.outcome, answer.holder) == (UniqueOutcome.REPLACED, first.job.id)
    assert [(await db.view(id_)).superseded_by for id_ in (old, first.job.id)] == uuids([first.job.id, second.job.id])
    assert await live_rows(db) == 1


async def test_two_that_pass_over_one_started_holder_make_one_job(db: MasterFixture) -> None:
    old = await created(db, unique("waiting", "debounce"))
    await finish(db, old)
    first = unique("waiting", "debounce", due_us=DUE)
    answer = await racing(db, first, unique("waiting", "debounce", passed=old, due_us=DUE))
    assert (answer.outcome, answer.job_id) == (UniqueOutcome.DEBOUNCED, first.job.id)


async def test_a_replacement_waits_for_the_outcome_of_the_holder_and_then_leaves_it_alone(db: MasterFixture) -> None:
    """The window of a job that has ended is not given to another, though it was running when the replacement began."""
    old = await created(db, unique("window"))
    await db.sql.execute("UPDATE job SET state = 'PROCESSING', bucket_id = gen_random_uuid(), bucket_epoch = 1")
    one = await db.connect()
    try:
        transaction = one.transaction()
        await transaction.start()
        await one.execute("UPDATE job SET state = 'SUCCEEDED'")
        second = submit(db, unique("window", "replace"))
        answer = await db.after_lock("uniqueness/submit", second, transaction.commit)
    finally:
        await one.close()
    assert (answer.outcome, answer.job_id) == (UniqueOutcome.EXISTING, old)
    assert len(await db.jobs()) == 1


async def test_holders_are_locked_in_the_order_of_their_ids_whatever_their_keys_are(db: MasterFixture) -> None:
    """Outcomes lock jobs in that order: in another one the two statements could each wait for the other."""
    ids = sorted(new_id() for _ in range(2))
    await created(db, unique(key="b", job_id=ids[0]))
    await created(db, unique(key="a", job_id=ids[1]))
    one = await db.connect()
    try:
        transaction = one.transaction()
        await transaction.start()
        await one.execute("SELECT FROM job WHERE id = $1 FOR UPDATE", *uuids([ids[0]]))

        async def last_is_free() -> None:
            await one.execute("SELECT FROM job WHERE id = $1 FOR UPDATE NOWAIT", *uuids([ids[1]]))
            await transaction.commit()

        replacing = db.master.uniqueness.submit([unique(on_conflict="replace", key=key) for key in "ab"])
        answers = await db.after_lock("uniqueness/submit", replacing, last_is_free)
    finally:
        await one.close()
    assert [answer.outcome for answer in answers] == [UniqueOutcome.REPLACED] * 2


async def test_many_racers_of_few_keys_make_one_job_each(db: MasterFixture) -> None:
    async def racer(number: int) -> list[Any]:
        jobs = [unique(key=f"k{key}", on_conflict=("existing", "replace")[number % 2]) for key in range(4)]
        return await db.master.uniqueness.submit(jobs)

    await asyncio.gather(*map(racer, range(12)))
    assert await live_rows(db) == 4
    assert await db.sql.fetchval("SELECT count(*) FROM unique_key") == 4


# ---------------------------------------------------------------- the caller's transaction, and what is kept


async def test_in_the_callers_transaction_key_and_job_stand_together_or_not_at_all(db: MasterFixture) -> None:
    one = await asyncpg.connect(db.dsn)
    try:
        transaction = one.transaction()
        await transaction.start()
        answer = await db.master.uniqueness.submit_in(one, unique())
        assert answer.outcome is UniqueOutcome.CREATED
        await transaction.rollback()
        assert await db.sql.fetchval("SELECT count(*) FROM unique_key") == 0
        assert await db.jobs() == []
        with pytest.raises(InputError, match="not in a transaction"):
            await db.master.uniqueness.submit_in(one, unique())
    finally:
        await one.close()


async def test_in_the_callers_transaction_a_debounced_job_in_a_bucket_counts_as_started(db: MasterFixture) -> None:
    first = await created(db, unique("waiting", "debounce"))
    assert len((await db.master.onboarding.onboard(db.fence, "default", 3, 60.0, 10)).entries) == 1
    one = await db.connect()
    try:
        async with one.transaction():
            answer = await db.master.uniqueness.submit_in(one, unique("waiting", "debounce"))
    finally:
        await one.close()
    assert answer.outcome is UniqueOutcome.CREATED
    assert answer.job_id != first


async def test_only_keys_that_have_been_free_for_long_are_forgotten(db: MasterFixture) -> None:
    for key, term in (("live", "live"), ("ended", "live"), ("open", "window"), ("over", "window"), ("gone", "waiting")):
        await created(db, unique(term, key=key))
    await finish(db, await db_holder(db, "ended"))
    await db.sql.execute("DELETE FROM job WHERE id = $1", *uuids([await db_holder(db, "gone")]))
    await db.sql.execute("UPDATE unique_key SET until = clock_timestamp() WHERE key = 'over'")
    assert await db.master.maintenance.forget(RecordKind.UNIQUE_KEYS, 1.0, 10) == 0
    await db.sql.execute("UPDATE unique_key SET held_at = held_at - interval '2 days'")
    assert await db.master.maintenance.forget(RecordKind.UNIQUE_KEYS, 1.0, 10) == 3
    assert [row["key"] for row in await db.sql.fetch("SELECT key FROM unique_key ORDER BY key")] == ["live", "open"]


async def test_rows_of_a_bulk_import_hold_their_keys_and_those_that_meet_a_job_are_left_out(db: MasterFixture) -> None:
    """As tasks of Spark insert them, which may run twice."""
    holder = await created(db, unique(key="a"))
    importer = Importer(ConnectionFactory(db.dsn, SCHEMA, MasterSettings(), "import"), Part("run", 1))
    rows = [unique(key=key) for key in ("a", "b", "b", "c")]
    jobs, rules = [one.job for one in rows], {one.job.id: one.rule for one in rows}
    plain = new_job(new_id())
    try:
        assert (await importer.insert([*jobs, plain], rules)).new == 3
        assert tuple(await importer.insert([*jobs, plain], rules)) == (0, 3)
    finally:
        await importer.close()
    assert await live_rows(db) == 4
    assert await db_holder(db, "a") == holder


async def test_a_release_answers_with_the_job_that_has_held_the_key_alone(db: MasterFixture) -> None:
    one = unique()
    await submit(db, one)
    release = statement("uniqueness/release").text
    (row,) = await db.sql.fetch(release, one.job.handler, "k", "ann")
    assert {name: bytes(value.bytes) for name, value in row.items()} == {"job_id": one.job.id}
    assert await db.sql.fetch(release, one.job.handler, "k", "ann") == []
