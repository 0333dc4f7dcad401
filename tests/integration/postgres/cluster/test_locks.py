"""Named locks: one holder by the master's clock, a fencing number that only grows; actions are recorded by their holder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from jobmaster.clock import new_id
from jobmaster.master.driver.statements import sql
from jobmaster.master.master import Master
from jobmaster.model.flow.lock import ATTEMPT_ENDED
from jobmaster.ports import RecordKind
from jobmaster.settings.model import MasterSettings
from tests.integration.postgres.fixture import SCHEMA, MasterFixture
from tests.support.waiting import eventually

TTL = 60.0
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.fixture
async def other(db: MasterFixture) -> AsyncIterator[Master]:
    """Another program."""
    master = await Master.connect(dsn=db.dsn, schema=SCHEMA, settings=MasterSettings(), application_name="other")
    yield master
    await master.close()


async def taken(master: Master, acquisition: bytes, name: str = "import", label: str = "first") -> int:
    answer = await master.locks.acquire(name, acquisition, label, TTL)
    assert answer.fence is not None
    assert answer.held is None
    return answer.fence


async def expire(db: MasterFixture) -> None:
    """The ttl is over by the master's clock."""
    await db.sql.execute("UPDATE named_lock SET expires_at = clock_timestamp() - interval '1 ms'")


async def test_a_held_lock_is_refused_and_its_holder_named(db: MasterFixture, other: Master) -> None:
    fence = await taken(db.master, new_id())
    answer = await other.locks.acquire("import", new_id(), "second", TTL)
    assert answer.fence is None
    assert answer.held is not None
    assert (answer.held.name, answer.held.holder, answer.held.fence) == ("import", "first", fence)
    assert answer.held.expires_us - answer.held.acquired_us == pytest.approx(TTL * 1e6, abs=1e6)
    assert await other.locks.held(10) == [answer.held]


async def test_of_many_programs_at_once_one_gets_the_lock(db: MasterFixture, other: Master) -> None:
    """Also where the row does not exist yet, and where it exists and is free."""
    for _ in range(10):
        acquisitions = [new_id() for _ in range(8)]
        answers = await asyncio.gather(
            *(
                (db.master, other)[at % 2].locks.acquire("import", each, "one", TTL)
                for at, each in enumerate(acquisitions)
            )
        )
        winners = [each for each, answer in zip(acquisitions, answers, strict=True) if answer.fence is not None]
        assert len(winners) == 1
        await db.master.locks.release("import", winners[0])


async def test_an_attempt_that_waits_for_the_row_is_refused_by_the_new_holder(db: MasterFixture, other: Master) -> None:
    """Written interleaving: the lock has expired, one program takes it and has not committed, another one tries."""
    await taken(db.master, new_id())
    await expire(db)
    connection = await asyncpg.connect(db.dsn, server_settings={"search_path": SCHEMA})
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(
            "UPDATE named_lock SET holder = gen_random_uuid(), fence = nextval('lock_fence'), label = 'second',"
            " expires_at = clock_timestamp() + interval '60 s'"
        )
        attempt = asyncio.ensure_future(other.locks.acquire("import", new_id(), "third", TTL))
        await eventually(lambda: db.sql.fetchval(WAITING), what="the attempt that waits for the row")
        await transaction.commit()
        assert (await attempt).fence is None
        assert [each.holder for each in await other.locks.held(10)] == ["second"]
    finally:
        await connection.close()


async def test_an_expired_lock_is_taken_with_a_higher_number(db: MasterFixture, other: Master) -> None:
    fence = await taken(db.master, new_id())
    assert (await other.locks.acquire("import", new_id(), "second", TTL)).fence is None, "not before its end"
    await expire(db)
    assert await other.locks.held(10) == []
    assert await taken(other, new_id(), label="second") > fence


async def test_the_former_holder_renews_and_gives_back_nothing(db: MasterFixture, other: Master) -> None:
    old = new_id()
    fence = await taken(db.master, old)
    await expire(db)
    second = await taken(other, new_id(), label="second")
    before = await db.master.locks.held(10)
    assert not await db.master.locks.renew("import", fence, 3600.0)
    await db.master.locks.release("import", old)
    assert await db.master.locks.held(10) == before
    assert await other.locks.renew("import", second, 3600.0)
    assert (await other.locks.held(10))[0].expires_us > before[0].expires_us


async def test_an_acquisition_sent_again_after_a_lost_answer_has_the_same_number(db: MasterFixture) -> None:
    own = new_id()
    fence = await taken(db.master, own)
    first = (await db.master.locks.held(10))[0]
    assert await taken(db.master, own) == fence
    again = (await db.master.locks.held(10))[0]
    assert (again.acquired_us, again.fence) == (first.acquired_us, fence)
    assert again.expires_us > first.expires_us


async def test_a_lock_that_was_given_back_is_free_and_is_not_renewed(db: MasterFixture, other: Master) -> None:
    own = new_id()
    fence = await taken(db.master, own)
    await db.master.locks.release("import", own)
    assert not await db.master.locks.renew("import", fence, TTL)
    assert await db.master.locks.held(10) == []
    assert await taken(other, new_id()) > fence


async def test_an_operator_takes_a_lock_from_its_holder(db: MasterFixture, other: Master) -> None:
    fence = await taken(db.master, new_id())
    revoked = await other.locks.revoke("import", "ann@host")
    assert revoked is not None
    assert (revoked.name, revoked.holder, revoked.fence) == ("import", "first", fence)
    assert not await db.master.locks.renew("import", fence, TTL)
    assert await other.locks.revoke("import", "ann@host") is None
    lines = await db.sql.fetch("SELECT actor, action, subject, detail->>'holder' AS holder FROM operator_log")
    assert [tuple(line) for line in lines] == [("ann@host", "lock release", "import", "first")]


async def test_rows_of_free_locks_are_forgotten_and_their_numbers_are_not(db: MasterFixture) -> None:
    fences = [await taken(db.master, new_id(), name) for name in ("held", "free", "expired")]
    await db.sql.execute(
        "UPDATE named_lock SET expires_at = clock_timestamp() - interval '8 days',"
        " holder = CASE WHEN name = 'expired' THEN holder END WHERE name <> 'held'"
    )
    assert await db.master.maintenance.forget(RecordKind.LOCKS, 9, 10) == 0
    assert await db.master.maintenance.forget(RecordKind.LOCKS, 7, 10) == 2
    assert await db.sql.fetchval("SELECT array_agg(name) FROM named_lock") == ["held"]
    assert await taken(db.master, new_id(), "free") > max(fences)


# ------------------------------------------------------------ actions that run once


async def test_an_action_is_recorded_by_the_holder_of_its_lock_alone(db: MasterFixture, other: Master) -> None:
    fence = await taken(db.master, new_id(), "once/load/1")
    await expire(db)
    second = await taken(other, new_id(), "once/load/1", "second")
    assert not await db.master.locks.record("load", "1", "once/load/1", fence)
    assert not await db.master.locks.is_done("load", "1")
    assert await other.locks.record("load", "1", "once/load/1", second)
    assert await other.locks.record("load", "1", "once/load/1", second), "the same, after a lost answer"
    assert await db.master.locks.is_done("load", "1")
    assert not await db.master.locks.is_done("load", "2")
    assert [(each.name, each.version, each.holder, each.state) for each in await other.locks.actions(10)] == [
        ("load", "1", "second", "done")
    ]


async def test_the_list_shows_actions_that_run_and_have_failed(db: MasterFixture, other: Master) -> None:
    async def listed() -> list[tuple[str, str, int, str | None]]:
        return [(each.version, each.state.value, each.failures, each.error) for each in await other.locks.actions(10)]

    locks, mine = db.master.locks, new_id()
    fence = await taken(db.master, mine, "once/load/1")
    assert await locks.begin("load", "1", "once/load/1", fence)
    assert await listed() == [("1", "running", 0, None)]
    await locks.fail("load", "1", fence, "LookupError: no rates\0" + "x" * 2000)
    await locks.fail("load", "1", fence, "after a lost answer")
    ((*_, failures, error),) = await listed()
    assert (failures, (error or "")[:22], len(error or "")) == (1, "LookupError: no ratesx", 1000)
    await locks.release("once/load/1", mine)
    assert not await locks.begin("load", "1", "once/load/1", fence), "it is not the holder any more"
    second = await taken(other, new_id(), "once/load/1", "second")
    assert await other.locks.begin("load", "1", "once/load/1", second)
    await locks.fail("load", "1", fence, "late")
    assert await listed() == [("1", "running", 1, None)]
    await expire(db)
    assert await listed() == [("1", "failed", 1, ATTEMPT_ENDED)]
    third = await taken(other, new_id(), "once/load/1", "third")
    assert await other.locks.begin("load", "1", "once/load/1", third)
    assert await other.locks.record("load", "1", "once/load/1", third)
    assert await listed() == [("1", "done", 0, None)]
    assert not await db.sql.fetchval("SELECT count(*) FROM once_attempt")


async def test_the_next_holder_waits_for_a_record_that_is_under_way(db: MasterFixture, other: Master) -> None:
    """Written interleaving: the lock expires while its holder records the action."""
    fence = await taken(db.master, new_id(), "once/load/1")
    await expire(db)
    connection = await asyncpg.connect(db.dsn, server_settings={"search_path": SCHEMA})
    try:
        transaction = connection.transaction()
        await transaction.start()
        assert await connection.fetch(sql("once/record"), "load", "1", "once/load/1", fence)
        attempt = asyncio.ensure_future(other.locks.acquire("once/load/1", new_id(), "second", TTL))
        await eventually(lambda: db.sql.fetchval(WAITING), what="the attempt that waits for the row")
        assert not attempt.done()
        await transaction.commit()
        assert (await attempt).fence is not None
        assert await other.locks.is_done("load", "1")
    finally:
        await connection.close()
