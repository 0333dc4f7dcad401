"""First rows, idempotency keys, and a submit inside a caller's transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import asyncpg
import pytest

from jobmaster.clock import new_id
from jobmaster.master import onboarding
from jobmaster.master.driver.connection import Row
from jobmaster.model.errors import InputError
from tests.integration.postgres.fixture import LANE, PRIORITY, MasterFixture, new_job, uuids


async def test_held_rows_have_token_one_and_no_bucket(db: MasterFixture) -> None:
    job_id = new_id()
    assert (await db.master.intake.insert_held([new_job(job_id, due_us=1_900_000_000_000_001)])).accepted == {job_id}
    view = await db.view(job_id)
    assert (view.state, view.token, view.bucket_id, view.due_us) == ("HELD", 1, None, 1_900_000_000_000_001)


async def test_an_id_that_exists_is_refused_and_its_neighbours_are_not(db: MasterFixture) -> None:
    old, fresh = new_id(), new_id()
    await db.master.intake.insert_held([new_job(old, lane="first")])
    written = await db.master.intake.insert_held([new_job(old, lane="second"), new_job(fresh)])
    assert written.accepted == {fresh}
    assert written.refused == {old}
    assert (await db.view(old)).lane == "first"


async def test_assigned_rows_have_token_two_and_may_be_sent_again(db: MasterFixture) -> None:
    job_id = new_id()
    for _ in range(2):
        written = await db.master.intake.insert_assigned(db.fence.bucket_id, db.fence.epoch, [new_job(job_id)])
        assert written.bucket_ok
        assert written.accepted == {job_id}
    view = await db.view(job_id)
    assert (view.state, view.token, view.bucket_id) == ("ASSIGNED", 2, db.fence.bucket_id)


async def test_ids_outside_every_partition_are_kept_and_named(db: MasterFixture) -> None:
    good, ancient, future = new_id(), bytes(16), b"\xff" * 16
    written = await db.master.intake.insert_held([new_job(id_) for id_ in (future, good, ancient)])
    assert written.accepted == {good}
    assert written.quarantined == {ancient, future}
    again = await db.master.intake.insert_held([new_job(id_) for id_ in (future, ancient)])
    assert again.quarantined == {ancient, future}
    kept = await db.sql.fetch("SELECT job_id, reason FROM quarantine ORDER BY job_id")
    assert [tuple(row) for row in kept] == [
        (uuids([ancient])[0], "below the watermark"), (uuids([future])[0], "outside every partition"),
    ]  # fmt: skip


async def test_the_first_to_reserve_a_key_holds_it(db: MasterFixture) -> None:
    first, second, third = (new_id() for _ in range(3))
    assert await db.master.intake.reserve_keys("mail", [("a", first, b"1")]) == [("a", first, b"1")]
    holders = await db.master.intake.reserve_keys("mail", [("b", second, b"2"), ("a", second, b"2")])
    assert holders == [("b", second, b"2"), ("a", first, b"1")]
    assert await db.master.intake.reserve_keys("other", [("a", third, b"3")]) == [("a", third, b"3")]


async def test_expiry_is_read_from_the_headers_and_kept_through_every_hold(db: MasterFixture) -> None:
    late, never = new_id(), new_id()
    headers = b'{"tags":["\\u0000"],"expires_us":1000000}'
    await db.master.intake.insert_held(
        [new_job(late, headers=headers), new_job(never, headers=b'{"metadata":{"a":"b"}}')]
    )
    assert await db.master.maintenance.expire_held(10) == 1
    assert [await db.state(id_) for id_ in (late, never)] == ["EXPIRED", "HELD"]
    view = await db.view(late)
    assert view.error is not None
    assert view.error.reason == "expired"


async def test_a_key_that_is_forgotten_while_it_is_asked_for_is_reserved_again(
    db: MasterFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job held it when it was reserved; then the house-keeping forgot it; then the holder was read."""
    older, job_id = new_id(), new_id()
    await db.master.intake.reserve_keys("mail", [("a", older, b"1")])
    read, forgotten = db.master._data.read, 0

    async def late(name: str, *args: Any) -> list[Row]:
        nonlocal forgotten
        if name == "intake/key_holders" and not forgotten:
            forgotten += 1
            await db.sql.execute("DELETE FROM idempotency")
        return await read(name, *args)

    monkeypatch.setattr(db.master._data, "read", late)
    assert await db.master.intake.reserve_keys("mail", [("a", job_id, b"2")]) == [("a", job_id, b"2")]
    assert forgotten == 1


class TestInTheCallersTransaction:
    async def test_the_rows_stand_when_the_caller_commits_and_not_before(self, db: MasterFixture) -> None:
        kept, dropped = new_id(), new_id()
        connection = await asyncpg.connect(db.dsn)
        try:
            async with connection.transaction():
                written = await db.master.intake.insert_held_in(connection, [new_job(kept)])
                assert written.accepted == {kept}
                assert await db.master.queries.get(kept) is None
            assert await db.state(kept) == "HELD"
            undone = connection.transaction()
            await undone.start()
            await db.master.intake.insert_held_in(connection, [new_job(dropped)])
            await undone.rollback()
            assert await db.master.queries.get(dropped) is None
        finally:
            await connection.close()

    async def test_nothing_of_the_callers_session_is_touched(self, db: MasterFixture) -> None:
        job_id = new_id()
        connection = await asyncpg.connect(db.dsn)
        try:
            await connection.execute(
                "CREATE SCHEMA elsewhere; SET search_path = elsewhere; SET timezone = 'Asia/Tokyo'"
            )
            await connection.execute("CREATE TABLE job (mine text)")
            settings = "SELECT name, setting FROM pg_settings ORDER BY name"
            before = await connection.fetch(settings)
            async with connection.transaction():
                await db.master.intake.insert_held_in(connection, [new_job(job_id, headers=b'{"expires_us":1}')])
                assert await connection.fetch(settings) == before
            assert await connection.fetch(settings) == before
            assert await connection.fetchval("SELECT count(*) FROM job") == 0
            assert await db.state(job_id) == "HELD"
        finally:
            await connection.execute("DROP SCHEMA elsewhere CASCADE")
            await connection.close()

    async def test_an_id_below_the_floor_is_refused_by_the_attic_there_too(self, db: MasterFixture) -> None:
        connection = await asyncpg.connect(db.dsn)
        try:
            async with connection.transaction():
                assert (await db.master.intake.insert_held_in(connection, [new_job(bytes(16))])).refused == {bytes(16)}
        finally:
            await connection.close()

    async def test_a_connection_outside_a_transaction_is_refused(self, db: MasterFixture) -> None:
        connection = await asyncpg.connect(db.dsn)
        try:
            with pytest.raises(InputError, match="not in a transaction"):
                await db.master.intake.insert_held_in(connection, [new_job(new_id())])
        finally:
            await connection.close()

    async def test_something_that_is_no_connection_is_refused(self, db: MasterFixture) -> None:
        with pytest.raises(InputError, match="asyncpg connection"):
            await db.master.intake.insert_held_in("postgresql://", [new_job(new_id())])


class TestOnboarding:
    async def test_only_what_is_due_soon_in_the_lane_and_priority_is_taken_oldest_first(
        self, db: MasterFixture
    ) -> None:
        now = await db.sql.fetchval("SELECT to_us(clock_timestamp())")
        old, soon, later, lane, level = (new_id() for _ in range(5))
        await db.master.intake.insert_held(
            [
                new_job(later, due_us=now + 120_000_000),
                new_job(soon, due_us=now + 30_000_000),
                new_job(old, due_us=now - 5_000_000),
                new_job(lane, lane="payroll"),
                new_job(level, priority=5),
            ]
        )
        first = await db.master.onboarding.onboard(db.fence, LANE, PRIORITY, 60.0, 1)
        assert [(e.id, e.token, e.due_us) for e in first.entries] == [(old, 2, now - 5_000_000)]
        assert first.more
        rest = await db.master.onboarding.onboard(db.fence, LANE, PRIORITY, 60.0, 10)
        assert [e.id for e in rest.entries] == [soon]
        assert await db.state(later) == "HELD"

    async def test_only_jobs_of_handlers_the_owner_has(self, db: MasterFixture) -> None:
        mine, others = new_id(), new_id()
        await db.master.intake.insert_held([new_job(mine), new_job(others)._replace(handler="elsewhere")])
        answer = await db.master.onboarding.onboard(db.fence, LANE, PRIORITY, 60.0, 10, [new_job(mine).handler])
        assert [entry.id for entry in answer.entries] == [mine]
        assert await db.state(others) == "HELD"

    async def test_never_more_than_the_limit(self, db: MasterFixture) -> None:
        await db.master.intake.insert_held([new_job(new_id()) for _ in range(300)])
        taken: list[bytes] = []
        for _ in range(5):
            answer = await db.master.onboarding.onboard(db.fence, LANE, PRIORITY, 60.0, 70)
            assert len(answer.entries) <= 70
            taken += [e.id for e in answer.entries]
        assert len(taken) == len(set(taken)) == 300

    async def test_never_more_bytes_than_a_batch_and_always_one(
        self, db: MasterFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(onboarding, "BATCH_BYTES", 1000)
        now = await db.sql.fetchval("SELECT to_us(clock_timestamp())")
        sizes = [400, 400, 400, 5000, 100, 100, 700, 400]
        jobs = [new_job(new_id(), due_us=now - 1000 + n)._replace(args=b"x" * size) for n, size in enumerate(sizes)]
        await db.master.intake.insert_held(jobs)
        taken: list[list[int]] = []
        while (answer := await db.master.onboarding.onboard(db.fence, LANE, PRIORITY, 60.0, 10)).entries:
            taken.append(sorted(len(entry.args) for entry in answer.entries))
            assert answer.more, "what was cut off waits, and older jobs may have come back"
        assert taken == [[400, 400], [400], [5000], [100, 100, 700], [400]]

    async def test_an_older_job_that_comes_back_during_a_backlog_is_not_forgotten(self, db: MasterFixture) -> None:
        now = await db.sql.fetchval("SELECT to_us(clock_timestamp())")
        await db.master.intake.insert_held([new_job(new_id(), due_us=now - 1000 + n) for n in range(40)])
        assert (await db.master.onboarding.onboard(db.fence, LANE, PRIORITY, 60.0, 10)).more
        back = new_id()
        await db.master.intake.insert_held([new_job(back, due_us=now - 60_000_000)])
        seen: set[bytes] = set()
        while True:
            answer = await db.master.onboarding.onboard(db.fence, LANE, PRIORITY, 60.0, 10)
            seen |= {e.id for e in answer.entries}
            if not answer.more:
                break
        assert back in seen
        assert len(seen) == 31

    async def test_claims_that_overlap_begin_where_the_last_one_ended(
        self, db: MasterFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A claim that begins at the oldest reads the dead entries of all that was claimed before it."""
        began, other = _begun(db, monkeypatch), await db.bucket()
        now = await db.sql.fetchval("SELECT to_us(clock_timestamp())")
        await db.master.intake.insert_held([new_job(new_id(), due_us=now - 1000 + n) for n in range(30)])
        await db.master.onboarding.onboard(db.fence, LANE, PRIORITY, 60.0, 10)
        answers = await asyncio.gather(
            *(db.master.onboarding.onboard(fence, LANE, PRIORITY, 60.0, 10) for fence in (db.fence, other))
        )
        assert began == [0, now - 991, now - 991]
        assert len({entry.id for answer in answers for entry in answer.entries}) == 20

    async def test_claims_that_overlap_do_not_put_off_the_one_that_begins_at_the_oldest(
        self, db: MasterFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(onboarding, "_REST", 0.0)
        began, other = _begun(db, monkeypatch), await db.bucket()
        now = await db.sql.fetchval("SELECT to_us(clock_timestamp())")
        await db.master.intake.insert_held([new_job(new_id(), due_us=now - 1000 + n) for n in range(90)])
        for _ in range(40):
            await asyncio.gather(
                *(db.master.onboarding.onboard(fence, LANE, PRIORITY, 60.0, 1) for fence in (db.fence, other))
            )
        at_the_oldest = [number for number, due_us in enumerate(began) if due_us == 0][2:]
        assert [later - one for one, later in pairwise(at_the_oldest)] == [17] * 3

    async def test_what_comes_to_lie_behind_that_place_is_counted_when_it_is_found(
        self, db: MasterFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(onboarding, "_REST", 0.0)
        monkeypatch.setattr(onboarding, "_LEAPS_MAX", 2)
        now = await db.sql.fetchval("SELECT to_us(clock_timestamp())")
        await db.master.intake.insert_held([new_job(new_id(), due_us=now - 1000 + n) for n in range(40)])
        counted = [(await db.master.onboarding.onboard(db.fence, LANE, PRIORITY, 60.0, 4)).behind for _ in range(4)]
        assert counted == [0, 0, 0, 0], "in order nothing comes to lie there"
        late = [new_id() for _ in range(3)]
        await db.master.intake.insert_held([new_job(job_id, due_us=now - 5000) for job_id in late])
        answers = [await db.master.onboarding.onboard(db.fence, LANE, PRIORITY, 60.0, 4) for _ in range(3)]
        assert sum(answer.behind for answer in answers) == 3
        assert set(late) <= {entry.id for answer in answers for entry in answer.entries}

    async def test_slow_looks_at_the_oldest_come_less_often(
        self, db: MasterFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A snapshot pins 500,000 dead entries, say, and a claim from the oldest on takes 0.2 s instead of 0.01 s."""
        seconds, began, write = 0.0, [], db.master._data.write

        async def slow(name: str, *args: Any, ids: Sequence[bytes] = ()) -> list[Row]:
            nonlocal seconds
            began.append(args[7])
            seconds += 0.01 if args[7] else 0.2
            return await write(name, *args, ids=ids)

        monkeypatch.setattr(onboarding, "_now", lambda: seconds)
        monkeypatch.setattr(db.master._data, "write", slow)
        now = await db.sql.fetchval("SELECT to_us(clock_timestamp())")
        await db.master.intake.insert_held([new_job(new_id(), due_us=now - 1000 + n) for n in range(500)])
        for _ in range(420):
            await db.master.onboarding.onboard(db.fence, LANE, PRIORITY, 60.0, 1)
        at_the_oldest = [number for number, due_us in enumerate(began) if due_us == 0]
        assert at_the_oldest[0] == 0
        assert [round(later - one, -1) for one, later in pairwise(at_the_oldest)] == [200, 200]

    async def test_what_is_due_now_is_not_looked_for_among_what_is_due_later(self, db: MasterFixture) -> None:
        now = await db.sql.fetchval("SELECT to_us(clock_timestamp())")
        await db.master.intake.insert_held([new_job(new_id(), due_us=now + 30_000_000 + n) for n in range(30)])
        assert (await db.master.onboarding.onboard(db.fence, LANE, PRIORITY, 60.0, 10)).more
        urgent = new_id()
        await db.master.intake.insert_held([new_job(urgent, due_us=now - 1000)])
        answer = await db.master.onboarding.onboard(db.fence, LANE, PRIORITY, 0.0, 10)
        assert [entry.id for entry in answer.entries] == [urgent]


def _begun(db: MasterFixture, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where claims begin to read, in the order in which they are sent."""
    began: list[int] = []
    write = db.master._data.write

    async def noting(name: str, *args: Any, ids: Sequence[bytes] = ()) -> list[Row]:
        began.append(args[7])
        return await write(name, *args, ids=ids)

    monkeypatch.setattr(db.master._data, "write", noting)
    return began
