"""Limits: permits follow rows, a count comes after the lock, rates by the database's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import asyncpg
import pytest

from jobmaster.clock import new_id
from jobmaster.codec import encode_headers
from jobmaster.master.driver.statements import sql
from jobmaster.model.flow.limit import LimitUse, LimitValues
from jobmaster.model.ids import Fence
from jobmaster.model.job import Headers, InFlightRow
from jobmaster.ports import Admission, FetchScope, RecordKind
from jobmaster.rules import capabilities
from tests.integration.postgres.fixture import (
    ERROR,
    SCHEMA,
    MasterFixture,
    final_row,
    hold_row,
    in_flight_row,
    new_job,
    uuids,
)
from tests.support.waiting import eventually

FAR_US = 4_000_000_000_000_000
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def _declare(db: MasterFixture, name: str = "api", running: int | None = 2, rate: float | None = None) -> None:
    burst = None if rate is None else max(rate, 1.0)
    await db.master.limits.declare(db.owner, [LimitValues(name, running, rate, burst)])


async def _admit(
    db: MasterFixture, ids: Sequence[bytes], *, key: str = "", weight: int = 1, name: str = "api", token: int = 1,
    fence: Fence | None = None,
) -> Admission:  # fmt: skip
    rows: list[InFlightRow] = [in_flight_row(each, token) for each in ids]
    uses = {each: (LimitUse(name, key, weight),) for each in ids}
    return await db.master.limits.admit(fence or db.fence, rows, uses)


def _ids(count: int) -> list[bytes]:
    return [new_id() for _ in range(count)]


async def _permits(db: MasterFixture) -> int:
    return int(await db.sql.fetchval("SELECT count(*) FROM permit"))


async def test_as_many_jobs_as_the_limit_start_in_order_and_of_the_others_nothing_is_written(db: MasterFixture) -> None:
    await _declare(db)
    ids = _ids(5)
    answer = await _admit(db, ids)
    assert answer.written.bucket_ok
    assert answer.written.accepted == set(ids[:2])
    assert list(answer.denied) == ids[2:]
    assert {tuple(full) for full in answer.denied.values()} == {("api", "", 0.0)}
    assert await db.master.queries.get(ids[2]) is None
    assert [await db.state(each) for each in ids[:2]] == ["PROCESSING", "PROCESSING"]


async def test_the_same_call_again_keeps_its_permits(db: MasterFixture) -> None:
    """The answer of the first call was lost."""
    await _declare(db)
    ids = _ids(2)
    await _admit(db, ids)
    again = await _admit(db, ids)
    assert again.written.accepted == set(ids)
    assert await _permits(db) == 2


@pytest.mark.parametrize("end", ["final", "hold", "retry here", "rescue", "row gone"])
async def test_whatever_ends_the_run_frees_its_permit(db: MasterFixture, rescuer: bytes, end: str) -> None:
    await _declare(db, running=1)
    (first, second) = _ids(2)
    await _admit(db, [first])
    assert (await _admit(db, [second])).denied
    fence = db.fence
    if end == "final":
        await db.master.outcomes.record_final([final_row(first, fence)])
    elif end == "hold":
        await db.master.outcomes.hold(fence, [hold_row(first)])
    elif end == "retry here":
        await db.master.outcomes.retry_here(fence, [hold_row(first, due_us=1, attempt=1)])
    elif end == "rescue":
        await db.lost()
        taken = await db.take(rescuer)
        await db.master.rescue.sweep(taken, 10, max_rescues=3)
        fence = await db.bucket(rescuer)
    else:
        await db.sql.execute("DELETE FROM job")
    assert (await _admit(db, [second], fence=fence)).written.accepted == {second}


async def test_a_job_that_is_given_back_and_starts_again_takes_one_permit(db: MasterFixture) -> None:
    await _declare(db, running=1)
    (job,) = await db.assigned(1)
    await _admit(db, [job], token=2)
    await db.master.outcomes.hold(db.fence, [hold_row(job, 2)])
    answer = await db.master.onboarding.onboard(db.fence, "default", 3, 60.0, 10)
    assert [entry.token for entry in answer.entries] == [3]
    assert (await _admit(db, [job], token=3)).written.accepted == {job}
    assert await _permits(db) == 1
    assert (await _admit(db, _ids(1))).denied


async def test_a_job_heavier_than_its_limit_takes_more_of_one_that_was_raised(db: MasterFixture) -> None:
    await _declare(db, running=2)
    assert (await _admit(db, _ids(1), weight=9)).written.accepted
    await db.master.limits.set(LimitValues("api", 10, None, None), "ann", "more")
    assert (await _admit(db, _ids(1), weight=2)).denied
    assert (await _admit(db, _ids(1))).written.accepted
    (view,) = await db.master.limits.list()
    assert view.taken == 10
    await db.master.limits.set(LimitValues("api", 3, None, None), "ann", "less")
    (view,) = await db.master.limits.list()
    assert view.taken == 4, "of three: the heavy one takes all, the light one was there"


async def test_the_start_of_a_rate_that_is_sent_again_is_no_second_start(db: MasterFixture) -> None:
    """The answer of the first call was lost. A denial would leave a job that has begun without its start."""
    await _declare(db, running=None, rate=0.0001)
    (job,) = _ids(1)
    assert (await _admit(db, [job])).written.accepted == {job}
    assert (await _admit(db, [job])).written.accepted == {job}
    assert (await _admit(db, _ids(1))).denied


async def test_agents_in_which_jobs_wait_for_a_limit_are_known_to_the_others(db: MasterFixture) -> None:
    await _declare(db, running=1)
    other = await db.bucket(await db.agent(new_id()))
    await _admit(db, _ids(1))
    keys = [("api", ""), ("api", "unused")]
    assert await db.master.limits.waiting_elsewhere(db.owner, keys) == []
    await _admit(db, _ids(1), fence=other)
    assert await db.master.limits.waiting_elsewhere(db.owner, keys) == [(other.bucket_id, "store")]
    assert await db.master.limits.waiting_elsewhere(other.owner, keys) == []
    await db.sql.execute("UPDATE limit_state SET waiting_at = waiting_at - interval '1 min'")
    assert await db.master.limits.waiting_elsewhere(db.owner, keys) == [], "it would have asked again"


async def test_a_job_that_waits_for_its_rate_gets_no_hint(db: MasterFixture) -> None:
    await _declare(db, running=None, rate=0.0001)
    other = await db.bucket(await db.agent(new_id()))
    await _admit(db, _ids(1))
    assert (await _admit(db, _ids(1), fence=other)).denied
    assert await db.master.limits.waiting_elsewhere(db.owner, [("api", "")]) == []


async def test_keys_have_permits_of_their_own_and_a_weight_takes_several(db: MasterFixture) -> None:
    await _declare(db, running=3)
    assert (await _admit(db, _ids(1), key="a", weight=2)).written.accepted
    assert (await _admit(db, _ids(1), key="a", weight=2)).denied
    assert (await _admit(db, _ids(1), key="b", weight=2)).written.accepted
    assert (await _admit(db, _ids(1), key="a")).written.accepted


async def test_a_job_that_is_heavier_than_the_limit_runs_alone(db: MasterFixture) -> None:
    await _declare(db, running=2)
    (heavy,) = _ids(1)
    assert (await _admit(db, [heavy], weight=9)).written.accepted
    assert (await _admit(db, _ids(1))).denied
    await db.master.outcomes.record_final([final_row(heavy, db.fence)])
    assert (await _admit(db, _ids(1))).written.accepted
    assert (await _admit(db, [new_id()], weight=9)).denied, "something else runs"


async def test_a_job_needs_a_permit_of_each_of_its_limits_or_takes_none(db: MasterFixture) -> None:
    await _declare(db, "wide", running=5)
    await _declare(db, "narrow", running=1)
    one, two = _ids(2)
    both = (LimitUse("wide", "", 1), LimitUse("narrow", "x", 1))
    answer = await db.master.limits.admit(db.fence, [in_flight_row(one), in_flight_row(two)], {one: both, two: both})
    assert answer.written.accepted == {one}
    assert [tuple(full) for full in answer.denied.values()] == [("narrow", "x", 0.0)]
    assert await _permits(db) == 2


async def test_an_unknown_limit_has_no_permits(db: MasterFixture) -> None:
    """A failover has forgotten the declaration: the job waits until an agent publishes it again."""
    assert (await _admit(db, _ids(1))).denied
    await _declare(db)
    assert (await _admit(db, _ids(1))).written.accepted


async def test_the_bucket_lock_comes_first_and_refuses_without_a_permit(db: MasterFixture) -> None:
    await _declare(db)
    await db.lost()
    answer = await _admit(db, _ids(1))
    assert not answer.written.bucket_ok
    assert not answer.denied
    assert await _permits(db) == 0


async def test_a_row_that_refuses_the_start_holds_no_permit(db: MasterFixture) -> None:
    await _declare(db, running=1)
    (job,) = await db.assigned(1)
    answer = await _admit(db, [job], token=1)
    assert answer.written.refused == {job}
    assert (await _admit(db, _ids(1))).written.accepted


async def test_a_cancelled_job_is_not_started_and_holds_no_permit(db: MasterFixture) -> None:
    await _declare(db, running=1)
    (job,) = await db.assigned(1)
    await db.master.requests.cancel(job, tombstone=None, actor="ann")
    answer = await _admit(db, [job], token=2)
    assert answer.written.cancelled == {job}
    assert (await _admit(db, _ids(1))).written.accepted


async def test_an_admission_that_waited_for_another_one_counts_what_that_one_took(db: MasterFixture) -> None:
    """Written interleaving: two agents ask for the last permit at once. Without the lock, or with a count in the statement
    that locks, both would have it."""
    await _declare(db, running=1)
    first, second = _ids(2)
    connection = await asyncpg.connect(db.dsn, server_settings={"search_path": SCHEMA})
    try:
        transaction = connection.transaction()
        await transaction.start()
        row = in_flight_row(first)
        columns = [[UUID(bytes=first)], *([value] for value in row[1:])]
        await connection.fetch(
            sql("limits/admit"), UUID(bytes=db.fence.bucket_id), db.fence.epoch, UUID(bytes=db.fence.owner), *columns,
            [1], ["api"], [""], [1],
        )  # fmt: skip
        waiting = asyncio.ensure_future(_admit(db, [second]))

        async def waits() -> bool:
            return bool(await db.sql.fetchval(WAITING))

        await eventually(waits, 60, "the second admission to wait")
        await transaction.commit()
        assert list((await waiting).denied) == [second]
    finally:
        await connection.close()


async def test_of_many_agents_at_once_never_more_than_the_limit_run(db: MasterFixture) -> None:
    await _declare(db, running=5)
    fences = [await db.bucket(await db.agent(new_id())) for _ in range(4)]
    most = 0
    for _ in range(5):
        answers = await asyncio.gather(*(_admit(db, _ids(4), fence=fence) for fence in fences))
        running = [(fence, job) for fence, one in zip(fences, answers, strict=True) for job in one.written.accepted]
        most = max(most, len(running))
        assert len(running) == 5
        await db.master.outcomes.record_final([final_row(job, fence) for fence, job in running])
    assert most == 5


async def test_a_changed_limit_counts_from_the_next_admission_on(db: MasterFixture) -> None:
    await _declare(db, running=1)
    (job,) = _ids(1)
    await _admit(db, [job])
    await db.master.limits.set(LimitValues("api", 3, None, None), "ann", "more")
    assert len((await _admit(db, _ids(4))).written.accepted) == 2
    await db.master.limits.set(LimitValues("api", 1, None, None), "ann", "less")
    await db.master.outcomes.record_final([final_row(job, db.fence)])
    assert (await _admit(db, _ids(1))).denied, "two still run"
    assert await db.master.limits.reset("api", "ann") is False
    assert await db.master.limits.reset("api", "ann") is None
    (view,) = await db.master.limits.list()
    assert (view.running, view.taken, view.keys, view.fullest) == (1, 2, 1, 2)
    actions = [row["action"] for row in await db.sql.fetch("SELECT action FROM operator_log ORDER BY seq")]
    assert actions == ["limit set", "limit set", "limit reset"]


async def test_a_limit_of_no_agent_is_removed_by_its_reset(db: MasterFixture) -> None:
    await db.master.limits.set(LimitValues("api", 3, 2.0, None), "ann", "")
    (view,) = await db.master.limits.list("api")
    assert (view.running, view.rate, view.burst, view.declared) == (3, 2.0, 2.0, False)
    assert await db.master.limits.reset("api", "ann") is True
    assert await db.master.limits.list() == []


async def test_the_declaration_of_the_agent_that_started_last_stands(db: MasterFixture) -> None:
    await _declare(db, running=2)
    newer = await db.agent(new_id())
    await db.master.limits.declare(newer, [LimitValues("api", 7, None, None)])
    await _declare(db, running=2)
    assert [view.running for view in await db.master.limits.list()] == [7]


async def test_a_later_agent_with_the_same_numbers_stands_against_those_between(db: MasterFixture) -> None:
    await _declare(db, running=2)
    between, newest = await db.agent(new_id()), await db.agent(new_id())
    assert await db.master.limits.declare(newest, [LimitValues("api", 2, None, None)]) == []
    await db.master.limits.declare(between, [LimitValues("api", 7, None, None)])
    assert [view.running for view in await db.master.limits.list()] == [2]


async def test_a_declaration_returns_the_limits_over_which_values_of_an_operator_stand(db: MasterFixture) -> None:
    both = [LimitValues("api", 2, None, None), LimitValues("mail", 2, None, None)]
    assert await db.master.limits.declare(db.owner, both) == []
    await db.master.limits.set(LimitValues("mail", 9, None, None), "ann", "")
    await db.master.limits.set(LimitValues("other", 9, None, None), "ann", "")
    assert await db.master.limits.declare(db.owner, both) == ["mail"]
    assert [(view.name, view.running) for view in await db.master.limits.list()] == [
        ("api", 2),
        ("mail", 9),
        ("other", 9),
    ]


async def test_a_rate_gives_its_burst_then_names_the_next_start(db: MasterFixture) -> None:
    await _declare(db, running=None, rate=2.0)
    answer = await _admit(db, _ids(4))
    assert len(answer.written.accepted) == 2
    waits = [full.wait_seconds for full in answer.denied.values()]
    assert all(0.3 < wait <= 0.5 for wait in waits), waits
    assert await _permits(db) == 0, "a rate alone has no permits"
    await db.sql.execute("UPDATE limit_state SET refilled_at = refilled_at - interval '0.5 s'")
    assert len((await _admit(db, _ids(2))).written.accepted) == 1


async def test_a_clock_that_was_set_back_or_far_ahead_gives_no_more_than_the_burst(db: MasterFixture) -> None:
    await _declare(db, running=None, rate=2.0)
    await _admit(db, _ids(2))
    await db.sql.execute("UPDATE limit_state SET refilled_at = refilled_at + interval '1 h'")
    assert (await _admit(db, _ids(1))).denied, "the clock was set back"
    await db.sql.execute("UPDATE limit_state SET refilled_at = refilled_at - interval '1 d'")
    assert len((await _admit(db, _ids(9))).written.accepted) == 2


async def test_idle_keys_are_forgotten_and_those_in_use_stay(db: MasterFixture) -> None:
    await _declare(db, running=5, rate=0.0001)
    ended, running = _ids(2)
    await _admit(db, [ended], key="idle")
    await db.master.outcomes.record_final([final_row(ended, db.fence)])
    await db.sql.execute("UPDATE job_limit SET declared_rate = NULL, declared_burst = NULL")
    await _admit(db, [running], key="used")
    await db.sql.execute("UPDATE limit_state SET locked_at = locked_at - interval '2 d'")
    assert await db.master.maintenance.forget(RecordKind.PERMITS, 1.0, 10) == 1
    assert [row["key"] for row in await db.sql.fetch("SELECT key FROM limit_state")] == ["used"]
    assert await _permits(db) == 1


async def test_a_key_whose_rate_is_not_refilled_is_not_forgotten(db: MasterFixture) -> None:
    await _declare(db, running=None, rate=0.00001)
    (job,) = _ids(1)
    await _admit(db, [job])
    await db.master.outcomes.record_final([final_row(job, db.fence)])
    await db.sql.execute("UPDATE limit_state SET locked_at = locked_at - interval '2 d'")
    assert await db.master.maintenance.forget(RecordKind.PERMITS, 1.0, 10) == 0


async def test_the_count_of_permits_reads_rows_by_their_key_and_never_all_jobs(db: MasterFixture) -> None:
    await db.processing(300)
    await db.sql.execute("ANALYZE job")
    await _declare(db, running=2)
    await _admit(db, _ids(3))
    plan = await db.sql.fetch(
        "EXPLAIN DELETE FROM permit p WHERE p.name = 'api' AND p.key = ''"
        " AND (SELECT j.state = 'PROCESSING' AND j.token = p.token FROM job j WHERE j.id = p.job_id) IS NOT TRUE"
    )
    text = "\n".join(row[0] for row in plan)
    assert "Index Scan using job" in text or "_pkey" in text, text
    assert "Hash" not in text
    assert uuids([]) == []


async def test_an_admission_compares_no_row_with_every_answer(db: MasterFixture) -> None:
    """Our sessions join by loops: a join of 1,000 rows with their answers took half a second, under the lock of the limit."""
    ids = _ids(3)
    rows = [in_flight_row(each) for each in ids]
    async with db.sql.transaction():
        await db.sql.execute("SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off")
        plan = await db.sql.fetch(
            "EXPLAIN " + sql("limits/admit"), UUID(bytes=db.fence.bucket_id), db.fence.epoch, UUID(bytes=db.fence.owner),
            [UUID(bytes=each) for each in ids], *([row[at] for row in rows] for at in range(1, 12)),
            [1, 2, 3], ["api"] * 3, ["a", "b", "c"], [1] * 3,
        )  # fmt: skip
    text = "\n".join(row[0] for row in plan)
    assert "Nested Loop" not in text, text
    assert "hashed SubPlan" in text, text


async def test_many_keys_in_one_call_have_their_own_permits_and_rates(db: MasterFixture) -> None:
    await _declare(db, running=1, rate=0.0001)
    ids = _ids(60)
    uses = {each: (LimitUse("api", f"k{at % 40:02}", 1),) for at, each in enumerate(ids)}
    answer = await db.master.limits.admit(db.fence, [in_flight_row(each) for each in ids], uses)
    assert answer.written.accepted == set(ids[:40])
    assert {full.key for full in answer.denied.values()} == {f"k{at:02}" for at in range(20)}
    filled = await db.sql.fetch("SELECT key, tokens FROM limit_state WHERE tokens < 0.5")
    assert len(filled) == 40


# ------------------------------------------------------------ ordering keys


def _ordered_headers(key: str) -> bytes:
    return encode_headers(Headers(ordering_key=key))


async def _ordered(db: MasterFixture, count: int, key: str = "order 7 ü") -> list[bytes]:
    """Jobs of an ordering key: ASSIGNED, token 2."""
    ids = _ids(count)
    await db.master.intake.insert_held([new_job(each, headers=_ordered_headers(key)) for each in ids])
    answer = await db.master.onboarding.onboard(
        db.fence, "default", 3, 60.0, count, None, (), FetchScope(sorted(capabilities.CAPABILITIES))
    )
    assert len(answer.entries) == count
    return ids


async def _start(db: MasterFixture, job: bytes, token: int = 2, key: str = "order 7 ü") -> bool:
    row = in_flight_row(job, token)._replace(headers=_ordered_headers(key))
    answer = await db.master.limits.admit(db.fence, [row], {job: (LimitUse("", key, 1),)})
    return job in answer.written.accepted


async def test_jobs_of_an_ordering_key_start_one_after_another_in_the_order_of_their_ids(db: MasterFixture) -> None:
    first, second, third = await _ordered(db, 3)
    assert not await _start(db, second)
    assert not await _start(db, third)
    assert await _start(db, first)
    assert await _start(db, first), "sent again"
    assert not await _start(db, second), "the first runs"
    await db.master.outcomes.record_final([final_row(first, db.fence, 2)])
    assert not await _start(db, third)
    assert await _start(db, second)


async def test_of_two_jobs_in_one_call_the_second_waits(db: MasterFixture) -> None:
    ids = await _ordered(db, 2)
    rows = [in_flight_row(each, 2)._replace(headers=_ordered_headers("order 7 ü")) for each in ids]
    uses = {each: (LimitUse("", "order 7 ü", 1),) for each in ids}
    answer = await db.master.limits.admit(db.fence, rows, uses)
    assert answer.written.accepted == {ids[0]}
    assert [tuple(full)[:2] for full in answer.denied.values()] == [("", "order 7 ü")]


async def test_an_earlier_job_that_waits_for_its_retry_is_waited_for(db: MasterFixture) -> None:
    first, second = await _ordered(db, 2)
    assert await _start(db, first)
    await db.master.outcomes.hold(db.fence, [hold_row(first, 2, due_us=FAR_US, attempt=1, error=ERROR)])
    assert not await _start(db, second)


async def test_an_earlier_job_whose_submit_commits_late_waits_for_the_one_that_runs(db: MasterFixture) -> None:
    """Two producers at once: the id of the later commit is the lower one."""
    (late,) = _ids(1)
    (other,) = await _ordered(db, 1)
    assert await _start(db, other)
    await db.master.intake.insert_held([new_job(late, headers=_ordered_headers("order 7 ü"))])
    answer = await db.master.onboarding.onboard(
        db.fence, "default", 3, 60.0, 9, None, (), FetchScope(sorted(capabilities.CAPABILITIES))
    )
    assert [entry.id for entry in answer.entries] == [late]
    assert not await _start(db, late)
    await db.master.outcomes.record_final([final_row(other, db.fence, 2)])
    assert await _start(db, late)


async def test_metadata_named_like_an_ordering_key_is_none(db: MasterFixture) -> None:
    misleading = encode_headers(Headers(metadata={"ordering_key": "order 7 ü"}, tags=('],"ordering_key":"order 7 ü',)))
    await db.master.intake.insert_held([new_job(new_id(), headers=misleading, due_us=FAR_US)])
    both = encode_headers(Headers(metadata={"ordering_key": "other"}, ordering_key="order 7 ü"))
    first = new_id()
    await db.master.intake.insert_held([new_job(first, headers=both, due_us=FAR_US)])
    (second,) = await _ordered(db, 1)
    assert not await _start(db, second), "the first has the key"
    await db.sql.execute("DELETE FROM job WHERE id = $1", UUID(bytes=first))
    assert await _start(db, second), "and the job that came before has metadata"


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled", "expired", "rescued too often"])
async def test_an_earlier_job_that_has_ended_is_not_waited_for(db: MasterFixture, end: str) -> None:
    first, second = await _ordered(db, 2)
    if end == "cancelled":
        await db.sql.execute("UPDATE job SET state = 'HELD', bucket_id = NULL, bucket_epoch = NULL WHERE id = $1",
                             UUID(bytes=first))  # fmt: skip
        await db.master.requests.cancel(first, tombstone=None, actor="ann")
    else:
        assert await _start(db, first)
        state = {"succeeded": "SUCCEEDED", "expired": "EXPIRED"}.get(end, "FAILED")
        await db.sql.execute("UPDATE job SET state = $2::job_state WHERE id = $1", UUID(bytes=first), state)
    assert await _start(db, second)


async def test_an_earlier_job_that_was_rescued_or_put_off_is_waited_for(db: MasterFixture, rescuer: bytes) -> None:
    """Rescue, snooze and a new due time leave a job in its place."""
    first, second = await _ordered(db, 2)
    assert await _start(db, first)
    await db.lost()
    taken = await db.take(rescuer)
    await db.master.rescue.sweep(taken, 10, max_rescues=3)
    assert await db.state(first) == await db.state(second) == "HELD"
    await db.sql.execute("UPDATE job SET due_at = due_at + interval '1 h' WHERE id = $1", UUID(bytes=first))
    fence = await db.bucket(rescuer)
    answer = await db.master.onboarding.onboard(
        fence, "default", 3, 60.0, 9, None, (), FetchScope(sorted(capabilities.CAPABILITIES))
    )
    (entry,) = answer.entries
    assert entry.id == second
    row = in_flight_row(second, entry.token)._replace(headers=_ordered_headers("order 7 ü"))
    assert (await db.master.limits.admit(fence, [row], {second: (LimitUse("", "order 7 ü", 1),)})).denied


async def test_other_keys_and_jobs_without_a_key_are_not_waited_for(db: MasterFixture) -> None:
    await _ordered(db, 1, "other")
    await db.assigned(1)
    (job,) = await _ordered(db, 1)
    assert await _start(db, job)


async def test_two_starts_of_one_key_at_once_are_decided_one_after_the_other(db: MasterFixture) -> None:
    """Written interleaving: the first has the lock of the key and has not committed."""
    first, second = await _ordered(db, 2)
    await db.sql.execute("UPDATE job SET state = 'SUCCEEDED', due_at = NULL WHERE id = $1", UUID(bytes=first))
    (late,) = await _ordered(db, 1)
    connection = await asyncpg.connect(db.dsn, server_settings={"search_path": SCHEMA})
    try:
        transaction = connection.transaction()
        await transaction.start()
        row = in_flight_row(second, 2)._replace(headers=_ordered_headers("order 7 ü"))
        columns = [[UUID(bytes=second)], *([value] for value in row[1:])]
        await connection.fetch(
            sql("limits/admit"), UUID(bytes=db.fence.bucket_id), db.fence.epoch, UUID(bytes=db.fence.owner), *columns,
            [1], [""], ["order 7 ü"], [1],
        )  # fmt: skip
        waiting = asyncio.ensure_future(_start(db, late))

        async def waits() -> bool:
            return bool(await db.sql.fetchval(WAITING))

        await eventually(waits, 60, "the other start to wait")
        await transaction.commit()
        assert not await waiting
    finally:
        await connection.close()


async def test_the_agent_in_which_the_next_job_of_an_ordering_key_waits_is_known_to_the_others(
    db: MasterFixture,
) -> None:
    first, second, third = await _ordered(db, 3)
    other = await db.bucket(await db.agent(new_id()))
    await db.sql.execute(
        "UPDATE job SET bucket_id = $2, bucket_epoch = 1 WHERE id = ANY ($1::uuid[])",
        uuids([second]),
        *uuids([other.bucket_id]),
    )
    keys = [("", "order 7 ü"), ("", "unused")]
    assert await db.master.limits.waiting_elsewhere(db.owner, keys) == [], "no job waits"
    assert not await _start(db, third)
    assert await db.master.limits.waiting_elsewhere(other.owner, keys) == [(db.fence.bucket_id, "store")], "the first"
    assert await _start(db, first)
    assert await db.master.limits.waiting_elsewhere(other.owner, keys) == [], "it runs"
    await db.master.outcomes.record_final([final_row(first, db.fence, 2)])
    assert not await _start(db, third), "denied last, and not the next"
    assert await db.master.limits.waiting_elsewhere(db.owner, keys) == [(other.bucket_id, "store")]
    assert await db.master.limits.waiting_elsewhere(other.owner, keys) == []


async def test_the_look_for_earlier_jobs_reads_the_index_of_ordering_keys(db: MasterFixture) -> None:
    # The newest of the name: those with other parameters are of earlier programs.
    source = str(
        await db.sql.fetchval("SELECT prosrc FROM pg_proc WHERE proname = 'take_permits' ORDER BY oid DESC LIMIT 1")
    )
    _, look, rest = source.partition("SELECT FROM job j\n")
    condition, end, _ = rest.partition(") ORDER BY u.n")
    assert look
    assert end
    condition = condition.replace("u.key", "'a'").replace("ids[u.job]", "gen_random_uuid()")
    await db.sql.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
    plan = await db.sql.fetch(f"EXPLAIN SELECT FROM job j {condition}")
    assert "ordering_key" in "\n".join(row[0] for row in plan if "Index Cond" in row[0])


async def test_the_look_for_the_next_job_reads_the_index_of_ordering_keys(db: MasterFixture) -> None:
    look = sql("limits/waiting_elsewhere")
    await db.sql.execute("INSERT INTO limit_state (name, key, waiting_at) VALUES ('', 'a', clock_timestamp())")
    await db.sql.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
    plan = await db.sql.fetch("EXPLAIN " + look, *uuids([db.owner]), [""], ["a"], 3.0)
    assert "ordering_key" in "\n".join(row[0] for row in plan if "Index Cond" in row[0])
