"""The pace of a read: slow while others write, quick while none does, and never above a rate that was given."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncpg
import pytest

from jobmaster.model.errors import InputError
from jobmaster.pipeline.datasource.cluster_ref import PACING_NAME, ClusterRef, cluster_ref_of
from jobmaster.pipeline.datasource.copy_to_arrow import CopyStream, Output
from jobmaster.pipeline.datasource.pacing import BESIDE_WRITERS, UNLIMITED, Look, Pace, PacedOutput, paced, rate_of
from tests.conftest import MIGRATED_SCHEMA
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import until

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
    async with paced(drop, pace, cluster) as output:
        assert isinstance(output, PacedOutput)
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
