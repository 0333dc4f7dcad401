"""Unfinished jobs move to the master of another cluster: none is lost, none is in both, wherever the move is interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import pytest

from jobmaster.clock import new_id
from jobmaster.doctor.findings import CheckStatus
from jobmaster.doctor.life import mode_finding
from jobmaster.master.driver.statements import statement
from jobmaster.master.history import cluster_move as history
from jobmaster.master.history import moving_keys
from jobmaster.master.history.archive import Archive
from jobmaster.master.history.cluster_move import ClusterMove, MasterPlace
from jobmaster.master.master import Master
from jobmaster.master.reports import Reader
from jobmaster.model.cluster import ClusterMode
from jobmaster.model.errors import Conflict
from jobmaster.model.flow.uniqueness import (
    OnConflict,
    UniqueAnswer,
    UniqueOutcome,
    UniqueRule,
    UniqueSubmit,
    UniqueTerm,
)
from jobmaster.retention import cluster_move
from jobmaster.retention.cluster_move import move_cluster, preview_move, set_mode
from jobmaster.settings.model import ClusterSettings, MasterSettings, StoreSettings
from jobmaster.wiring import connect
from tests.integration.postgres.fixture import ERROR, SCHEMA, MasterFixture, hold_row, new_job
from tests.support.servers.migrated_databases import MigratedDatabases
from tests.support.waiting import until


class Two(NamedTuple):
    """The two clusters."""

    source: MasterFixture
    target: MasterFixture

    def settings(self, which: MasterFixture) -> ClusterSettings:
        return ClusterSettings(
            cluster=which.master.cluster.name,
            master=MasterSettings(dsn=which.dsn, schema=SCHEMA, pool_size=1),
            stores={"default": StoreSettings(url="redis://localhost")},
        )

    async def move(
        self, *, archive: bool = False, progress: Callable[[str], None] = lambda line: None
    ) -> cluster_move.MoveResult:
        settings = [self.settings(db) for db in self]
        return await move_cluster(settings[0], settings[1], "ann", progress, archive=archive)

    async def places(self) -> dict[UUID, tuple[str | None, str | None]]:
        """Job -> its states in the source and in the target."""
        found: dict[UUID, list[str | None]] = {}
        for place, db in enumerate(self):
            for row in await db.sql.fetch("SELECT id, state::text FROM job"):
                found.setdefault(row["id"], [None, None])[place] = row["state"]
        return {id_: (states[0], states[1]) for id_, states in found.items()}


async def _fixture(dsn: str) -> MasterFixture:
    sql = await asyncpg.connect(dsn, server_settings={"search_path": SCHEMA})
    master = await Master.connect(
        dsn=dsn, schema=SCHEMA, settings=MasterSettings(pool_size=1), application_name="tests"
    )
    return MasterFixture(dsn, master, sql)


@pytest.fixture
async def two(migrated_dsn: str, migrated_databases: MigratedDatabases) -> AsyncIterator[Two]:
    other = await migrated_databases.take("target")
    made = Two(await _fixture(migrated_dsn), await _fixture(other))
    yield made
    for db in made:
        await db.master.close()
        await db.sql.close()
    await migrated_databases.give_back(other)


async def _hold(db: MasterFixture, count: int) -> set[UUID]:
    ids = [new_id() for _ in range(count)]
    held = await db.master.intake.insert_held([new_job(id_) for id_ in ids])
    assert held.accepted == set(ids)
    return {UUID(bytes=id_) for id_ in ids}


async def test_what_waits_moves_with_all_that_belongs_to_it_once_no_agent_can_run_it(two: Two) -> None:
    source, target = two
    waiting = await _hold(source, 20)
    await source.agent(source.owner, lease_seconds=0.5)
    source.fence = await source.bucket()
    again = new_id()  # a failed attempt, and a job of a range that has left
    await source.master.outcomes.hold(source.fence, [hold_row(again, error=ERROR)])
    await source.sql.execute("INSERT INTO idempotency (scope, key, job_id, digest) SELECT 'h', 'k' || n, $1, '' "
                             "FROM generate_series(1, 20) n", UUID(bytes=again))  # fmt: skip
    await source.sql.execute("INSERT INTO job_limit (name, set_running, set_at) VALUES ('stripe', 7, now())")
    await source.sql.execute("INSERT INTO pause (kind, value, actor, reason) VALUES ('lane', 'slow', 'ann', '')")
    await source.sql.execute(_SCHEDULE)
    await source.sql.execute(_PUT_OFF, min(waiting))
    waits = asyncio.Event()
    moving = asyncio.create_task(two.move(progress=lambda line: waits.set() if "1 open bucket" in line else None))
    await waits.wait()
    assert set((await two.places()).values()) == {("HELD", None)}, "an owner may still run them"
    late = await _hold(source, 3)
    await source.sql.execute("UPDATE bucket SET state = 'READY_TO_DELETE'")
    await source.sql.execute("UPDATE agent SET state = 'RETIRED'")
    moved = await moving
    everything = waiting | late | {UUID(bytes=again)}
    assert (moved.moved, moved.archived) == (len(everything), False)
    assert await two.places() == dict.fromkeys(everything, ("MOVED", "HELD"))
    assert await target.sql.fetchval("SELECT outcome FROM attempt WHERE job_id = $1", UUID(bytes=again)) == "failed"
    assert await target.sql.fetchval("SELECT count(*) FROM idempotency") == 20
    assert await target.sql.fetchval("SELECT set_running FROM job_limit") == 7
    assert await target.sql.fetchval("SELECT value FROM pause") == "slow"
    assert await target.sql.fetchval("SELECT job_id FROM put_off") == min(waiting)
    assert await target.sql.fetchval("SELECT decide_at FROM schedule") is not None, "it fires there"
    assert await source.sql.fetchval("SELECT decide_at FROM schedule") is None, "and not here"
    token = "SELECT token FROM job WHERE id = $1"
    assert await target.sql.fetchval(token, UUID(bytes=again)) == await source.sql.fetchval(token, UUID(bytes=again))


_SCHEDULE = """
INSERT INTO schedule (name, source, digest, definition, handler, args, priority, lane, expression, zone, overlap, declared_at,
                      next_fire, decide_at)
VALUES ('nightly', 'api', 'd', '{}', 'handler', '{}', 3, 'default', '@daily', 'UTC', 'skip', now(), now() + interval '1 h',
        now() + interval '1 h')
"""


_PUT_OFF = """
INSERT INTO put_off (job_id, lane, priority, handler, due_at, until)
SELECT id, lane, priority, handler, due_at, due_at FROM job WHERE id = $1
"""


async def test_a_job_older_than_the_target_moves_too(two: Two) -> None:
    old = UUID(bytes=(1_600_000_000_000).to_bytes(6, "big") + new_id()[6:])
    await two.source.sql.execute("SELECT set_config('jobmaster.attic_mover', 'on', false)")
    await two.source.sql.execute(
        "INSERT INTO job (id, state, priority, lane, handler, token, due_at, args) "
        "VALUES ($1, 'HELD', 3, 'default', 'handler', 4, now(), '{}')",
        old,
    )
    await two.move()
    assert await two.places() == {old: ("MOVED", "HELD")}


async def test_an_archived_cluster_refuses_every_submit_with_one_error_and_can_be_read(two: Two) -> None:
    (job,) = await _hold(two.source, 1)
    settings = two.settings(two.source)
    with pytest.raises(Conflict, match="1 jobs have not ended"):
        await set_mode(settings, ClusterMode.ARCHIVED, "ann", "")
    assert (await two.move(archive=True)).archived
    async with connect(settings) as cluster:
        with pytest.raises(Conflict, match="the cluster is archived: it takes no jobs"):
            await cluster.submit("handler", {}, allow_unregistered=True)
    with pytest.raises(asyncpg.PostgresError, match="the cluster is archived"):
        await two.source.sql.execute("INSERT INTO job SELECT * FROM job")
    view = await two.source.view(job.bytes)
    assert (view.state, view.state.final) == ("MOVED", True)
    with pytest.raises(asyncpg.PostgresError, match="the cluster is archived: it takes no signals"):
        await _send(two.source, "order:1")
    assert (await two.move()).archived, "the command again opens no archived cluster"
    with pytest.raises(asyncpg.PostgresError, match="the cluster is archived"):
        await two.source.sql.execute("INSERT INTO job SELECT * FROM job")
    assert await set_mode(settings, ClusterMode.ACTIVE, "ann", "") is ClusterMode.ARCHIVED
    await _hold(two.source, 1)


async def test_rows_of_moved_jobs_leave_an_archived_cluster_when_they_are_old(two: Two) -> None:
    db = two.source
    jobs = sorted(await _hold(db, 5))
    archive = await Archive.connect(dsn=db.dsn, schema=SCHEMA, settings=MasterSettings())
    now = await db.sql.fetchval("SELECT clock_timestamp()")
    try:
        await db.sql.execute(
            "UPDATE job SET state = 'FAILED', changed_at = changed_at - interval '31 days' WHERE id = $1", jobs[4]
        )
        await two.move()
        await db.sql.execute(
            "UPDATE job SET changed_at = changed_at - interval '31 days' WHERE id = ANY ($1)", jobs[:3]
        )
        before = now - timedelta(days=30)
        assert await archive.forget_moved(before) == 0, "the cluster may become active again"
        await two.move(archive=True)
        await db.sql.execute("UPDATE cluster_move SET page = $1", jobs[:1])
        assert await archive.forget_moved(before) == 0, "some jobs may be in both"
        await db.sql.execute("UPDATE cluster_move SET page = '{}'")
        assert await archive.forget_moved(before) == 3
        assert await archive.forget_moved(before) == 0
    finally:
        await archive.close()
    left = {row["id"]: row["state"] for row in await db.sql.fetch("SELECT id, state::text FROM job")}
    assert left == {jobs[3]: "MOVED", jobs[4]: "FAILED"}, "what has ended here stays until its range leaves"
    assert {row["id"] for row in await two.target.sql.fetch("SELECT id FROM job")} == {*jobs[:4]}


async def test_only_an_active_cluster_of_the_same_migrations_is_a_target(two: Two) -> None:
    with pytest.raises(Conflict, match="the same cluster"):
        await move_cluster(two.settings(two.source), two.settings(two.source), "ann", lambda line: None)
    await set_mode(two.settings(two.target), ClusterMode.MIGRATING, "ann", "")
    with pytest.raises(Conflict, match="the target cluster is migrating"):
        await two.move()


async def test_no_page_is_chosen_while_an_agent_without_a_lease_may_come_back(two: Two) -> None:
    (job,) = await _hold(two.source, 1)
    await two.source.agent(two.source.owner)
    await set_mode(two.settings(two.source), ClusterMode.MIGRATING, "ann", "")
    await two.source.sql.execute("UPDATE cluster SET mode_at = now() - interval '1 h'")
    await two.source.sql.execute("UPDATE agent SET lease_until = now() - interval '1 min'")
    waits = asyncio.Event()
    moving = asyncio.create_task(
        two.move(progress=lambda line: waits.set() if "death certificate of 1" in line else None)
    )
    await asyncio.wait([asyncio.create_task(waits.wait()), moving], return_when=asyncio.FIRST_COMPLETED)
    assert await two.places() == {job: ("HELD", None)}
    await two.source.sql.execute("UPDATE agent SET state = 'DEAD'")
    assert (await moving).moved == 1


async def test_a_preview_counts_what_moves_and_what_stays_and_changes_nothing(two: Two) -> None:
    await _hold(two.source, 3)
    await _wait(two.source, "order:1")
    await two.source.sql.execute(_SCHEDULE)
    settings = [two.settings(db) for db in two]
    found = await preview_move(settings[0], settings[1])
    assert (found.held, found.waiting, found.schedules, found.stay) == (3, 1, 1, 0)
    assert await two.source.sql.fetchval("SELECT mode FROM cluster") == "active"
    assert await two.source.sql.fetchval("SELECT count(*) FROM cluster_move") == 0


# ---------------------------------------------------------------- keys


async def _until_keys_are_read(two: Two) -> asyncio.Task[cluster_move.MoveResult]:
    """A move has read all keys and waits for an open bucket of the source."""
    two.source.fence = await two.source.bucket(await two.source.agent(two.source.owner))
    waits = asyncio.Event()
    moving = asyncio.create_task(two.move(progress=lambda line: waits.set() if "1 open bucket" in line else None))
    await until(lambda: waits.is_set() or moving.done(), "the open bucket")
    return moving


async def _quiet(db: MasterFixture) -> None:
    await db.sql.execute("UPDATE bucket SET state = 'READY_TO_DELETE'")
    await db.sql.execute("UPDATE agent SET state = 'RETIRED'")


async def test_keys_that_come_after_all_have_been_read_are_in_the_target_with_their_jobs(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving_keys, "_MARGIN", timedelta(0))  # a bucket may stay open for hours
    source, target = two
    jobs = sorted(await _hold(source, 3))
    early = await source.connect()
    transaction = early.transaction()
    await transaction.start()
    await early.execute(_KEY, "early", jobs[0])
    await source.sql.execute(_UNIQUE, "taken over", UUID(bytes=new_id()))
    moving = await _until_keys_are_read(two)
    assert await target.sql.fetchval("SELECT count(*) FROM idempotency") == 0
    await transaction.commit()
    await early.close()
    await source.sql.execute(_KEY, "late", jobs[1])
    await source.sql.execute("DELETE FROM unique_key")
    await source.sql.execute(_UNIQUE, "taken over", jobs[2])
    await source.sql.execute("INSERT INTO once_action (name, version, fence, label) VALUES ('grant', '1', 1, '')")
    await _quiet(source)
    await moving
    keys = await target.sql.fetch("SELECT key, job_id FROM idempotency")
    assert {row["key"]: row["job_id"] for row in keys} == {"early": jobs[0], "late": jobs[1]}
    assert await target.sql.fetchval("SELECT job_id FROM unique_key") == jobs[2], "the later holder"
    assert await target.sql.fetchval("SELECT name FROM once_action") == "grant"


_KEY = "INSERT INTO idempotency (scope, key, job_id, digest) VALUES ('h', $1, $2, '')"
_UNIQUE = "INSERT INTO unique_key (handler, key, job_id, term, held_at) VALUES ('h', $1, $2, 'live', clock_timestamp())"


async def test_a_page_that_an_earlier_process_left_moves_with_keys_of_any_age(two: Two) -> None:
    (job,) = await _hold(two.source, 1)
    await set_mode(two.settings(two.source), ClusterMode.MIGRATING, "ann", "")
    await two.source.sql.execute("INSERT INTO idempotency (scope, key, job_id, digest, created_at) "
                                 "VALUES ('h', 'k', $1, '', now() - interval '1 day')", job)  # fmt: skip
    moving = await ClusterMove.connect(*(MasterPlace(db.dsn, SCHEMA, MasterSettings()) for db in two))
    await moving.begin()
    assert await moving.move_page(4) == 1
    await moving.close()
    assert await two.target.sql.fetchval("SELECT job_id FROM idempotency") == job


@pytest.mark.parametrize("term", [UniqueTerm.LIVE, UniqueTerm.WAITING])
async def test_a_job_that_has_moved_holds_its_unique_key(two: Two, term: UniqueTerm) -> None:
    conflict = OnConflict.REPLACE if term is UniqueTerm.LIVE else OnConflict.DEBOUNCE
    rule = UniqueRule("k", term, 0 if term is UniqueTerm.LIVE else 3_600_000_000, False, conflict)

    async def submit() -> UniqueAnswer:
        new = new_job(new_id(), due_us=time.time_ns() // 1000 + 60_000_000, headers=b'{"unique_key":"k"}')
        return (await two.source.master.uniqueness.submit([UniqueSubmit(new, rule, None)]))[0]

    first = await submit()
    await two.move()
    later = await submit()
    assert (later.outcome, later.job_id) == (UniqueOutcome.EXISTING, first.job_id)
    assert await two.places() == {UUID(bytes=first.job_id): ("MOVED", "HELD")}
    assert not await two.source.sql.fetchval("SELECT cancel_requested FROM job")
    assert [key.job.bytes for key in await two.source.master.uniqueness.held("handler", "k", 10)] == [first.job_id]
    forget = statement("maintenance/forget_unique_keys").text
    assert await two.source.sql.fetchval(forget, 0.0, 10) == 0, "while the cluster moves"
    await set_mode(two.settings(two.source), ClusterMode.ACTIVE, "ann", "")
    assert await two.source.sql.fetchval(forget, 0.0, 10) == 1


# ---------------------------------------------------------------- signals


async def _wait(db: MasterFixture, key: str) -> UUID:
    new = new_job(new_id(), headers=b'{"requires":["signals"],"signal":{"key":"%s"}}' % key.encode())
    await db.master.signals.hold_waiting([new])
    return UUID(bytes=new.id)


async def _send(db: MasterFixture, key: str, recipients: str = "all", payload: bytes = b"1") -> int:
    send = statement("signals/send").text
    row = await db.sql.fetchrow(send, UUID(bytes=new_id()), key, payload, recipients, 3600.0, 100, "ann", 100)
    assert row is not None
    return int(row["delivered"])


async def _has_received(db: MasterFixture, job: UUID) -> bool:
    row = await db.sql.fetchrow("SELECT state, headers FROM job WHERE id = $1", job)
    assert row is not None
    return row["state"] == "HELD" and b'"received"' in row["headers"]


async def test_a_signal_that_is_sent_to_the_old_cluster_reaches_a_job_that_has_moved(two: Two) -> None:
    job = await _wait(two.source, "order:1")
    await two.move()
    assert await two.places() == {job: ("MOVED", "WAITING")}
    assert await _send(two.source, "order:1") == 0
    await two.move()
    assert await _has_received(two.target, job)
    assert not await two.source.sql.fetchval("SELECT count(*) FROM signal WHERE kept_until IS NOT NULL")


async def test_a_job_receives_what_the_new_cluster_has_kept_before_it_came(two: Two) -> None:
    job = await _wait(two.source, "order:1")
    await _send(two.target, "order:1")
    await two.move()
    assert await _has_received(two.target, job)


async def test_a_kept_signal_for_one_job_is_received_once_wherever_its_way_is_interrupted(two: Two) -> None:
    await _send(two.source, "order:1", "one")
    await set_mode(two.settings(two.source), ClusterMode.MIGRATING, "ann", "")
    places = [MasterPlace(db.dsn, SCHEMA, MasterSettings()) for db in two]
    for forgets in (False, True):  # it dies after the send, and comes again
        moving = await ClusterMove.connect(*places)
        await moving.begin()
        run = moving._run

        async def cut(
            connection: Any, name: str, *values: object, run: Any = run, forgets: bool = forgets
        ) -> list[Any]:
            if name == "cluster/forget_signal" and not forgets:
                raise _Killed
            return list(await run(connection, name, *values))

        moving._run = cut  # type: ignore[method-assign]
        with contextlib.suppress(_Killed):
            await moving.move_signals()
        await moving.close()
        if not forgets:
            with pytest.raises(Conflict, match="some signals are on their way"):
                await set_mode(two.settings(two.source), ClusterMode.ACTIVE, "ann", "")
    jobs = [await _wait(db, "order:1") for db in two]
    assert [await _has_received(db, job) for db, job in zip(two, jobs, strict=True)] == [False, True]


async def test_an_older_signal_of_the_old_cluster_does_not_replace_newer_news_of_the_new_one(two: Two) -> None:
    await _send(two.source, "order:1", payload=b'"old"')
    await _send(two.target, "order:1", payload=b'"new"')
    await two.move()
    job = await _wait(two.target, "order:1")
    assert b'\\"new\\"' in await two.target.sql.fetchval("SELECT headers FROM job WHERE id = $1", job)


# ---------------------------------------------------------------- sizes


async def test_a_page_goes_in_slices_of_some_bytes_in_one_transaction(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One statement takes some hundred megabytes of JSON; a page of large jobs has more."""
    monkeypatch.setattr(history, "_SLICE_BYTES", 2500)
    monkeypatch.setattr(moving_keys, "_PAGE_ROWS", 3)
    monkeypatch.setattr(history, "_ROWS", 3)
    everything = await _hold(two.source, 9)
    await two.source.sql.execute("UPDATE job SET args = convert_to(repeat('x', 1000), 'UTF8')")
    await two.source.sql.execute(
        "UPDATE job SET args = convert_to(repeat('x', 9000), 'UTF8') WHERE id = $1", max(everything)
    )
    await two.source.sql.execute(
        "INSERT INTO idempotency (scope, key, job_id, digest) SELECT 'h', id::text, id, '' FROM job"
    )
    await two.source.sql.execute("INSERT INTO unique_key (handler, key, job_id, term, held_at) "
                                 "SELECT 'h', id::text, id, 'live', now() FROM job")  # fmt: skip
    await two.source.sql.execute(
        "INSERT INTO pause (kind, value, actor, reason) SELECT 'lane', id::text, '', '' FROM job"
    )
    sizes = []
    take = ClusterMove._take

    async def counted(self: ClusterMove, table: str, rows: list[str]) -> int:
        if table == "job":
            sizes.append(len(rows))
        return await take(self, table, rows)

    monkeypatch.setattr(ClusterMove, "_take", counted)
    await two.move()
    assert sizes == [2, 2, 2, 2, 1]
    assert await two.places() == dict.fromkeys(everything, ("MOVED", "HELD"))
    for table in ("idempotency", "unique_key", "pause"):
        assert await two.target.sql.fetchval(f"SELECT count(*) FROM {table}") == 9, table


# ---------------------------------------------------------------- interruptions


class _Killed(BaseException):
    """The process is gone; nothing in it may catch this."""


async def _killed_at(two: Two, call: int, *, after: bool) -> bool:
    """A page is moved by a process that dies at a call; False when it had ended before."""
    places = [MasterPlace(db.dsn, SCHEMA, MasterSettings()) for db in two]
    moving = await ClusterMove.connect(*places)
    run, calls = moving._run, 0

    async def cut(*values: Any) -> list[Any]:
        nonlocal calls
        calls += 1
        if calls == call and not after:
            raise _Killed
        rows = await run(*values)
        if calls == call:
            raise _Killed
        return rows

    moving._run = cut  # type: ignore[method-assign, assignment]
    try:
        await moving.begin()
        while await moving.move_page(4):
            pass
    except _Killed:
        for connection in (moving._source, moving._target):
            connection.terminate()
        return True
    await moving.close()
    return False


@pytest.mark.slow
@pytest.mark.parametrize("after", [pytest.param(False, marks=pytest.mark.long), True])
async def test_wherever_the_process_dies_the_next_one_completes_its_page(two: Two, after: bool) -> None:
    settings = two.settings(two.source)
    await set_mode(settings, ClusterMode.MIGRATING, "ann", "")
    everything: set[UUID] = set()
    doubtful = 0
    for call in range(1, 80):
        everything |= await _hold(two.source, 5)
        killed = await _killed_at(two, call, after=after)
        there = [id_ for id_, states in (await two.places()).items() if states == ("HELD", "HELD")]
        if there:  # the target runs one of them, and a person cancels another one in the source
            doubtful += 1
            with pytest.raises(Conflict, match="some jobs may be in both"):
                await set_mode(settings, ClusterMode.ACTIVE, "ann", "")
            reader = await Reader.connect(dsn=two.source.dsn, schema=SCHEMA)
            assert (await mode_finding(reader)).status is CheckStatus.WARN
            await reader.close()
            await two.target.sql.execute("UPDATE job SET state = 'SUCCEEDED', bucket_id = id, bucket_epoch = 1 WHERE id = $1",
                                         there[0])  # fmt: skip
            await two.source.master.requests.cancel(there[1].bytes, tombstone=None, actor="ann")
        if not killed:
            break
    else:
        pytest.fail("the move did not end")
    assert doubtful
    await two.move()
    places = await two.places()
    assert set(places) == everything
    found = set(places.values())
    assert found <= {("MOVED", "HELD"), ("MOVED", "SUCCEEDED"), ("CANCELLED", "CANCELLED")}
    assert ("CANCELLED", "CANCELLED") in found
    assert ("MOVED", "SUCCEEDED") in found


@pytest.mark.slow
async def test_thousands_of_jobs_move_under_load_and_kills_and_each_is_in_one_place(two: Two, tmp_path: Path) -> None:
    """A producer goes on submitting, the target runs what has come, and the command is killed again and again."""
    everything = await _hold(two.source, 3000)
    configs = {}
    for name, db in (("source", two.source), ("target", two.target)):
        configs[name] = tmp_path / f"{name}.yaml"
        configs[name].write_text(
            f"cluster: {db.master.cluster.name}\nmaster: {{dsn: '{db.dsn}', schema: {SCHEMA}}}\n"
            "stores: {default: {url: 'redis://localhost'}}\n"
        )
    ended = asyncio.Event()
    finished: dict[UUID, int] = {}

    async def submit() -> None:
        while not ended.is_set():
            everything.update(await _hold(two.source, 20))
            await asyncio.sleep(0.01)

    async def run() -> None:
        while not ended.is_set():
            rows = await two.target.sql.fetch(
                "UPDATE job SET state = 'SUCCEEDED', bucket_id = id, bucket_epoch = 1 "
                "WHERE id IN (SELECT id FROM job WHERE state = 'HELD' LIMIT 50) RETURNING id"
            )
            for row in rows:
                finished[row["id"]] = finished.get(row["id"], 0) + 1
            await asyncio.sleep(0.01)

    command = [sys.executable, "-m", "jobmaster.cli.main", "migrate", "--config", str(configs["source"]), "--to"]
    tasks = [asyncio.create_task(submit()), asyncio.create_task(run())]
    for kill_after in (1, 2, 3, 1, 2):
        process = await asyncio.create_subprocess_exec(
            *command, str(configs["target"]), stderr=asyncio.subprocess.PIPE, env=dict(os.environ)
        )
        assert process.stderr is not None
        pages = 0
        async for line in process.stderr:
            pages += b"jobs moved" in line
            if pages == kill_after:
                process.kill()
                break
        assert await process.wait() == -9
    ended.set()
    await asyncio.gather(*tasks)
    process = await asyncio.create_subprocess_exec(*command, str(configs["target"]), "--archive", env=dict(os.environ))
    assert await process.wait() == 0
    places = await two.places()
    assert set(places) == everything
    assert {states[0] for states in places.values()} == {"MOVED"}
    assert {states[1] for states in places.values()} <= {"HELD", "SUCCEEDED"}
    assert set(finished.values()) == {1}
    assert await two.source.sql.fetchval("SELECT mode FROM cluster") == "archived"
