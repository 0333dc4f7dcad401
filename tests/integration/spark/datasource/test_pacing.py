"""The pace of a read: slow while others write, quick while none does, and never above a rate that was given."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import asyncpg
import pytest

from jobmaster.master.history.export import Pauses, copy_rows, open_scan, set_pauses
from jobmaster.model.errors import InputError
from jobmaster.pipeline.datasource.cluster_ref import PACING_NAME, ClusterRef, cluster_ref_of
from jobmaster.pipeline.datasource.copy_to_arrow import CopyStream, Output
from jobmaster.pipeline.datasource.pacing import (
    BESIDE_WRITERS,
    UNLIMITED,
    Look,
    Pace,
    PacedOutput,
    paced,
    pauses_of,
    rate_of,
)
from jobmaster.pipeline.datasource.range_scan import RangeScan
from jobmaster.pipeline.datasource.selection import selection_of
from jobmaster.pipeline.datasource.tables import table_of
from tests.conftest import MIGRATED_SCHEMA
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually, until

if TYPE_CHECKING:
    from tests.integration.spark.datasource.conftest import PublishedCluster

DEFAULT = Pace()
UNLIMITED_RATE = float("inf")


@pytest.fixture
def cluster(migrated_dsn: str) -> ClusterRef:
    return cluster_ref_of({"dsn": migrated_dsn, "schema": MIGRATED_SCHEMA})


async def drop(rows: bytes) -> None:
    """Take rows, and forget them."""


@asynccontextmanager
async def reading(cluster: ClusterRef, pace: Pace = DEFAULT) -> AsyncIterator[PacedOutput]:
    """A task that reads."""
    async with paced(drop, pace, cluster) as (output, pauses):
        assert isinstance(output, PacedOutput)
        assert pauses is not None
        yield output


@asynccontextmanager
async def writing(cluster: ClusterRef) -> AsyncIterator[None]:
    """Another program, each of whose transactions writes, many a second."""
    connection = await asyncpg.connect(cluster.dsn)
    ended = asyncio.Event()

    async def write() -> None:
        while not ended.is_set():
            await connection.execute("SELECT pg_current_xact_id()")  # takes a number, as an insert does
            await asyncio.sleep(0.005)

    task = asyncio.create_task(write())
    try:
        yield
    finally:
        ended.set()
        await task
        await connection.close()


@pytest.mark.slow
async def test_a_task_is_slow_while_others_write_and_shares_the_rate_with_other_tasks(cluster: ClusterRef) -> None:
    async with reading(cluster) as first:
        assert first.rate == BESIDE_WRITERS, "the first rows, before anything is known"
        await until(lambda: first.rate == UNLIMITED_RATE, "the server to be found idle")
        async with writing(cluster):
            await until(lambda: first.rate == BESIDE_WRITERS, "those who write to be found")
            async with reading(cluster) as second:
                await until(lambda: {first.rate, second.rate} == {BESIDE_WRITERS / 2}, "a share for each task")
            await until(lambda: first.rate == BESIDE_WRITERS, "the whole rate again")
        await until(lambda: first.rate == UNLIMITED_RATE, "the server to be idle again")


@pytest.mark.slow
async def test_a_rate_that_is_given_holds_on_an_idle_server_too(cluster: ClusterRef) -> None:
    async with reading(cluster, Pace(1000)) as first, reading(cluster, Pace(1000)) as second:
        await until(lambda: {first.rate, second.rate} == {500.0}, "a share for each task")


@pytest.mark.slow
async def test_a_session_that_is_lost_makes_a_task_slow_until_it_looks_again(cluster: ClusterRef) -> None:
    async with reading(cluster) as task:
        await until(lambda: task.rate == UNLIMITED_RATE, "the server to be found idle")
        admin = await asyncpg.connect(cluster.dsn)
        try:
            await admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                f" WHERE application_name = '{PACING_NAME}' AND datname = current_database()"
            )
            await until(lambda: task.rate == BESIDE_WRITERS, "the loss to be noticed")
        finally:
            await admin.close()
        await until(lambda: task.rate == UNLIMITED_RATE, "another session to look")


@pytest.mark.slow
async def test_while_the_server_does_not_answer_a_task_stays_slow(cluster: ClusterRef) -> None:
    gone = cluster._replace(dsn="postgresql://127.0.0.1:1/none")
    async with reading(gone) as task:
        await asyncio.sleep(0.3)  # the first look has failed; there is nothing to wait for, because nothing changes
        assert task.rate == BESIDE_WRITERS


HOUR = 3600.0
EVENTS = 20
_INSERT = (
    f"INSERT INTO {MIGRATED_SCHEMA}.bucket_event (bucket_id, to_state, epoch, reason)"
    " SELECT gen_random_uuid(), 'ACTIVE', n, 'test' FROM generate_series(1, $1::int) AS n"
)


@pytest.fixture
async def admin(cluster: ClusterRef) -> AsyncIterator[asyncpg.Connection]:
    """A session of another program. The master has ``EVENTS`` events of buckets."""
    connection = await asyncpg.connect(cluster.dsn)
    try:
        await connection.execute(_INSERT, EVENTS)
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def scanning(cluster: ClusterRef, pauses: Pauses) -> AsyncIterator[tuple[int, asyncio.Task[list[bytes]]]]:
    """The session of a scan of all events, and its rows."""
    found: list[bytes] = []

    async def note(rows: bytes) -> None:
        found.extend(rows.splitlines())

    async def scan() -> list[bytes]:
        values = [datetime(2000, 1, 1, tzinfo=UTC), datetime(3000, 1, 1, tzinfo=UTC), None]
        assert await copy_rows(connection, "events", ["epoch", "reason"], values, note, pauses) == len(found)
        return sorted(found)

    connection = await open_scan(cluster.reading_factory())
    task = asyncio.create_task(scan())
    try:
        yield connection.get_server_pid(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        connection.terminate()


async def waits_for(admin: asyncpg.Connection, pid: int) -> str | None:
    """What a session waits for in the server."""
    found: str | None = await admin.fetchval("SELECT wait_event FROM pg_stat_activity WHERE pid = $1", pid)
    return found


async def is_held(admin: asyncpg.Connection, key: int) -> bool:
    """Whether a session holds the advisory lock of a scan."""
    free: bool = await admin.fetchval("SELECT pg_try_advisory_lock($1)", key)
    if free:
        await admin.execute("SELECT pg_advisory_unlock($1)", key)
    return not free


ALL_ROWS = sorted(b"%d\x02test" % number for number in range(1, EVENTS + 1))


@pytest.mark.parametrize("key", [None, 7])
async def test_a_scan_pauses_in_the_server_and_has_every_row(
    cluster: ClusterRef, admin: asyncpg.Connection, key: int | None
) -> None:
    """After each row, if there is to be one row between two pauses."""
    async with scanning(cluster, Pauses(1.0, HOUR, key)) as (pid, _):

        async def sleeps() -> bool:
            return await waits_for(admin, pid) == "PgSleep"

        await eventually(sleeps, what="the scan to pause")
        assert key is None or not await is_held(admin, key), "the lock of a scan lasts for its look at it"
    began = time.monotonic()
    async with scanning(cluster, Pauses(1.0, 0.02, key)) as (_, rows), asyncio.timeout(PATIENCE_SECONDS):
        assert await rows == ALL_ROWS
    assert time.monotonic() - began >= EVENTS * 0.02


async def test_a_scan_makes_no_pauses_while_another_session_ends_them(
    cluster: ClusterRef, admin: asyncpg.Connection
) -> None:
    looking = await cluster.pacing_factory().open(plan_once=False)

    async def begin() -> None:
        assert await set_pauses(looking, 7, on=True)

    async def leave() -> None:
        looking.terminate()

    for again in (begin, leave):
        assert await set_pauses(looking, 7, on=False)
        other = await cluster.pacing_factory().open(plan_once=False)
        assert not await set_pauses(other, 7, on=False), "a session that has the lock does not make others wait"
        other.terminate()
        async with scanning(cluster, Pauses(1.0, HOUR, 7)) as (_, rows), asyncio.timeout(PATIENCE_SECONDS):
            assert await rows == ALL_ROWS, "twenty pauses of an hour"
        await again()

        async def free() -> bool:
            return not await is_held(admin, 7)

        await eventually(free, what="the pauses to begin again: they were ended by this session only")


async def test_a_task_reads_with_pauses(cluster: ClusterRef, admin: asyncpg.Connection) -> None:
    """Of two milliseconds each. What has arrived is passed on, and the task ends with its reader."""
    await admin.execute(_INSERT, 5000)
    table = table_of("events")
    selection = selection_of(table, tuple(table.names), {})
    scan = RangeScan(cluster, selection, 1 << 22, pace=Pace(1))
    batches = scan.batches(selection.low, selection.high)

    async def sleeps() -> bool:
        found: bool = await admin.fetchval(
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
        )
        return found

    rows = asyncio.create_task(asyncio.to_thread(lambda: next(batches).num_rows))
    try:
        await eventually(sleeps, what="the server to pause")
        assert await rows > 0
    finally:
        await asyncio.gather(rows, return_exceptions=True)
        await asyncio.to_thread(batches.close)  # type: ignore[attr-defined]  # it is a generator


@pytest.mark.slow
async def test_the_session_that_looks_ends_the_pauses_while_none_writes(
    cluster: ClusterRef, admin: asyncpg.Connection
) -> None:
    async with paced(drop, DEFAULT, cluster) as (_, pauses):
        assert pauses is not None
        key = pauses.key
        assert key is not None

        async def held() -> bool:
            return await is_held(admin, key)

        async def free() -> bool:
            return not await is_held(admin, key)

        await eventually(held, what="the server to be found idle")
        async with writing(cluster):
            await eventually(free, what="those who write to be found")
        await eventually(held, what="the server to be idle again")
    await eventually(free, what="the session to end with its task")


@pytest.mark.parametrize("rate", [None, 1, 100, 390, 20_000, 100_000, 190_000])
def test_the_pauses_of_a_task_leave_time_for_its_rate(rate: int | None) -> None:
    pace = Pace(rate)
    pauses, others = pauses_of(pace), pauses_of(pace)
    assert pauses is not None
    assert others is not None
    assert pauses.rows >= 1
    assert pauses.seconds == 0.002, "the server rounds up to whole milliseconds"
    took = pauses.rows * 5e-6 + pauses.seconds
    assert pauses.rows / took >= (rate or BESIDE_WRITERS), "rows of five microseconds"
    assert (pauses.key is None) == (rate is not None), "where a rate always holds there are always pauses"
    assert pauses.key is None or pauses.key != others.key, "two tasks would end each other's pauses"


@pytest.mark.parametrize("pace", [UNLIMITED, Pace(200_000), Pace(1_000_000)])
def test_a_rate_that_leaves_no_time_for_pauses_has_none(pace: Pace) -> None:
    assert pauses_of(pace) is None


async def test_rows_take_their_time() -> None:
    """The first and the last ones, too; and a pause is not made up for."""
    passed: list[bytes] = []

    async def note(rows: bytes) -> None:
        passed.append(rows)

    output: Output = PacedOutput(note, 1000.0)
    for _ in range(2):
        for portion in (b"row\n" * 100, b"row\n" * 50):
            began = time.monotonic()
            await output(portion)
            assert time.monotonic() - began >= portion.count(b"\n") / 1000 - 0.001
        await asyncio.sleep(0.1)
    assert len(list(filter(None, passed))) == 4


async def test_rows_that_wait_go_on_when_the_limit_ends() -> None:
    for enough in (UNLIMITED_RATE, 1000.0):
        output = PacedOutput(drop, 0.001)
        waits = asyncio.create_task(output(b"row\n"))
        await asyncio.sleep(0)
        output.rate = enough
        await asyncio.wait_for(waits, PATIENCE_SECONDS)


async def test_a_task_that_waits_ends_with_its_reader() -> None:
    class Stopped(Exception):
        """The reader has gone."""

    async def stops(rows: bytes) -> None:
        if not rows:
            raise Stopped

    with pytest.raises(Stopped):
        await PacedOutput(stops, 0.001)(b"row\n")


def test_rows_of_a_slow_copy_come_before_a_block_is_full_and_it_ends_with_its_reader() -> None:
    """A block has four megabytes by default: at a hundred rows a second it would be full after hours."""
    import pyarrow as pa

    ended = []

    async def copy(output: Output) -> None:
        try:
            for number in range(1_000_000):
                await output(b"%d\n" % number)
                await asyncio.sleep(0.01)
        finally:
            ended.append(True)

    batches = CopyStream(copy, 1 << 22).batches(pa.schema([("n", pa.int64())]), "a test")
    assert next(batches).num_rows > 0
    batches.close()  # type: ignore[attr-defined]  # it is a generator
    assert ended


@pytest.mark.parametrize(
    ("pace", "before", "now", "rate"),
    [
        (Pace(), None, None, BESIDE_WRITERS),
        (Pace(tasks=8), None, None, BESIDE_WRITERS / 8),
        (Pace(3000, tasks=6), None, None, 500.0),
        (Pace(), None, Look(1_000_000, False, 500, 1), BESIDE_WRITERS),
        (Pace(), Look(1_000_000, False, 500, 1), Look(2_000_000, False, 509, 1), UNLIMITED_RATE),
        (Pace(), Look(1_000_000, False, 500, 1), Look(2_000_000, False, 510, 4), BESIDE_WRITERS / 4),
        (Pace(), Look(1_000_000, True, 500, 1), Look(2_000_000, True, 9000, 4), UNLIMITED_RATE),
        (Pace(3000), Look(1_000_000, False, 500, 3), Look(2_000_000, False, 500, 3), 1000.0),
        (UNLIMITED, Look(1_000_000, False, 500, 1), Look(2_000_000, False, 9000, 1), UNLIMITED_RATE),
    ],
)
def test_the_rate_of_a_task(pace: Pace, before: Look | None, now: Look | None, rate: float) -> None:
    """On a standby nobody submits: what others write there comes from the primary."""
    assert rate_of(pace, before, now) == rate


@pytest.mark.slow
@pytest.mark.spark
def test_the_option(published: PublishedCluster) -> None:
    from jobmaster.pipeline.datasource.read_options import read_options, read_plan

    published.ended(300)
    began = time.monotonic()
    assert len(published.read(rowsPerSecond="200", numPartitions="1", batchBytes="1000").collect()) == 300
    assert time.monotonic() - began >= 1.499, "300 rows at 200 a second"
    assert published.read(rowsPerSecond="unlimited").count() == 300
    for wrong in ("0", "-1", "fast", "1.5"):
        options = read_options({**published.options, "rowsPerSecond": wrong})
        with pytest.raises(InputError, match="option rowsPerSecond is '"):
            read_plan(options, published.read().schema)


def test_a_task_that_looks_has_two_connections() -> None:
    """So half as many tasks run within ``maxConnections``."""
    from jobmaster.pipeline.datasource.read_options import read_options, read_plan

    class Schema:
        fields = ()

    given = {"dsn": "postgresql://h/d", "cluster": "c", "numPartitions": "10", "maxConnections": "6"}
    assert read_plan(read_options(given), Schema).tasks == 3
    assert read_plan(read_options({**given, "rowsPerSecond": "unlimited"}), Schema).tasks == 6
    assert read_plan(read_options({**given, "maxConnections": "1"}), Schema).tasks == 1
    assert read_plan(read_options({**given, "counted": "true"}), Schema).tasks == 6
    assert read_plan(read_options(given), Schema, streams=True).tasks == 6
    assert read_plan(read_options({**given, "rowsPerSecond": "9"}), Schema, streams=True).pace == Pace(9, tasks=3)
    held = {"table": "history", "snapshot": "00000003-0000001B-1"}
    assert read_plan(read_options({**given, **held}), Schema).tasks == 2
