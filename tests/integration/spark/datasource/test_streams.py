"""A stream delivers every row once: what is moved does not come again, and what is dropped unread is an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import pytest

from jobmaster.master.history.archive import Archive
from jobmaster.model.errors import Refused
from tests.integration.spark.datasource.conftest import PublishedCluster, published_cluster

pytestmark = [pytest.mark.slow, pytest.mark.spark]

_T = TypeVar("_T")
_OLD = """
INSERT INTO job (id, state, priority, lane, handler, token, bucket_id, bucket_epoch, due_at, waited_us, ran_us, args)
SELECT (substr(uuid_floor(clock_timestamp() - interval '1 day')::text, 1, 14) || '7' || substr(md5(random()::text), 1, 3)
        || '-8' || substr(md5(random()::text), 4, 3) || '-' || substr(md5(random()::text), 7, 12))::uuid,
       $2::job_state, 3, 'default', 'h', 1, CASE WHEN $2 <> 'HELD' THEN gen_random_uuid() END,
       CASE WHEN $2 <> 'HELD' THEN 1 END, clock_timestamp(), 1, 1, '{}'
FROM generate_series(1, $1)
"""
_LINES = """
INSERT INTO attempt (job_id, token, bucket_id, bucket_epoch, outcome)
SELECT id, token, gen_random_uuid(), 1, 'failed' FROM job WHERE state = 'HELD'
"""


@pytest.fixture
def published(migrated_dsn: str, cluster_name: str, tmp_path: Path) -> Iterator[PublishedCluster]:
    """A cluster without jobs; nothing here needs a session of Spark."""
    made = published_cluster(migrated_dsn, cluster_name, tmp_path / "lake")
    yield made
    made.close()


class Stream:
    """What Spark does with a stream: asks for an end, reads up to it, and goes on from there."""

    def __init__(self, published: PublishedCluster, table: str = "jobs", **options: str) -> None:
        from pyspark.sql.types import StringType, StructType

        from jobmaster.pipeline.datasource.read_options import read_options, read_plan
        from jobmaster.pipeline.datasource.stream_reader import JobMasterStreamReader

        given = {**published.options, "table": table, "numPartitions": "2", **options}
        self.key = "id" if table == "jobs" else "job_id"
        self.reader = JobMasterStreamReader(read_plan(read_options(given), StructType().add(self.key, StringType())))
        self.at = self.reader.initialOffset()

    def poll(self, rows: int | None = None) -> dict[str, Any]:
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

        return self.reader.latestOffset(self.at, ReadAllAvailable() if rows is None else ReadMaxRows(rows))

    def read(self, end: dict[str, Any]) -> list[str]:
        """The ids up to there."""
        found = [
            key
            for part in self.reader.partitions(self.at, end)
            for batch in self.reader.read(part)
            for key in batch.column(self.key).to_pylist()
        ]
        self.at = end
        return found

    def all(self) -> list[str]:
        return self.read(self.poll())


def archived(published: PublishedCluster, work: Callable[[Archive], Coroutine[Any, Any, _T]]) -> _T:
    """Some work of an archiver."""

    async def connected() -> _T:
        master = published.settings.master
        archive = await Archive.connect(dsn=master.dsn or "", schema=published.settings.schema_name(), settings=master)
        try:
            return await work(archive)
        finally:
            await archive.close()

    return asyncio.run(connected())


async def retire(archive: Archive) -> None:
    """Every range that is over leaves ``job``."""
    while await archive.detach(datetime.now(UTC) + timedelta(days=1)) is not None:
        pass


async def drop(archive: Archive, *, discard: bool = False) -> None:
    """And the master."""
    await retire(archive)
    for found in await archive.ranges():
        if not discard:
            measured = await archive.measure(found)
            found = await archive.exported(found, "/lake", 1, "run", measured)
            await archive.published(await archive.verified(found, ()))
        await archive.drop(found.name, discard=discard)


async def discard(archive: Archive) -> None:
    await drop(archive, discard=True)


async def sweep(archive: Archive) -> None:
    assert await archive.sweep(datetime.now(UTC) + timedelta(seconds=1)) is not None


def old(published: PublishedCluster, count: int, state: str = "SUCCEEDED") -> None:
    """Jobs of yesterday, written now."""
    published.sql(lambda connection: connection.execute(_OLD, count, state))


@pytest.mark.parametrize("leave", [drop, pytest.param(discard, marks=pytest.mark.long)])
def test_a_range_that_is_dropped_before_it_was_read_is_an_error(
    published: PublishedCluster, leave: Callable[[Archive], Coroutine[Any, Any, None]]
) -> None:
    """A stream that catches up in small batches, as after a long pause; also one that was not started yet."""
    for _ in range(3):
        old(published, 10)
    catching_up, not_begun = Stream(published), Stream(published)
    assert len(catching_up.read(catching_up.poll(rows=10))) == 10
    archived(published, leave)
    for stream in (catching_up, not_begun):
        with pytest.raises(
            Refused, match=r"job_day_\d+ left the master before this stream had read all of it \(read what"
        ):
            stream.poll()


def test_a_range_that_is_dropped_between_the_poll_and_the_reading_is_an_error_too(published: PublishedCluster) -> None:
    old(published, 10)
    stream = Stream(published)
    end = stream.poll()
    archived(published, drop)
    with pytest.raises(Refused, match="before this stream had read all of it"):
        stream.read(end)


def test_a_stream_at_its_goal_raises_no_error_for_a_range_dropped_afterwards(published: PublishedCluster) -> None:
    """As with the trigger AvailableNow: the end is fixed when the query starts."""
    old(published, 10)
    stream = Stream(published)
    stream.reader.prepareForTriggerAvailableNow()
    assert len(stream.all()) == 10
    archived(published, drop)
    assert stream.all() == []
    stream = Stream(published)
    published.ended(5)
    stream.reader.prepareForTriggerAvailableNow()
    assert len(stream.all()) == 5


@pytest.mark.parametrize("leave", [drop, pytest.param(discard, marks=pytest.mark.long)])
def test_a_range_that_was_read_or_was_gone_before_or_is_not_asked_for_is_no_error(
    published: PublishedCluster, leave: Callable[[Archive], Coroutine[Any, Any, None]]
) -> None:
    old(published, 10)
    reader, attempts = Stream(published), Stream(published, "attempts")
    younger = Stream(published, since=(datetime.now(UTC) - timedelta(minutes=1)).isoformat())
    assert len(reader.all()) == 10
    archived(published, leave)
    published.ended(5)
    assert len(reader.all()) == 5
    assert attempts.all() == [], "the range had no attempts"
    assert len(Stream(published).all()) == 5
    younger.all()


def test_a_range_that_is_being_read_is_not_dropped_meanwhile(published: PublishedCluster) -> None:
    """The reading task keeps it; the archiver waits without asking for a lock."""
    old(published, 10)
    archived(published, retire)
    stream = Stream(published, batchBytes="1")
    end = stream.poll()

    async def while_reading(archive: Archive) -> None:
        from jobmaster.master.history.export import open_scan
        from jobmaster.pipeline.datasource.range_scan import TransactionWindow, check_window

        task = await open_scan(stream.reader.plan.cluster.connection_factory())
        window = TransactionWindow(end["began"], stream.at["xid"], end["xid"])
        await check_window(task, stream.reader.plan.selection, window)
        told = asyncio.Event()
        (found,) = await archive.ranges()
        dropping = asyncio.create_task(archive.drop(found.name, discard=True, progress=lambda _: told.set()))
        await told.wait()
        assert await task.fetchval("SELECT count(*) FROM job_detached") == 10
        task.terminate()
        assert await dropping

    archived(published, while_reading)


def test_jobs_that_end_in_the_attic_come_once_wherever_they_are_moved(published: PublishedCluster) -> None:
    from benchmarks.support.synthetic_history import lower_floor

    published.sql(lambda connection: lower_floor(connection, 3))
    old(published, 20)
    old(published, 10, "HELD")
    published.sql(lambda connection: connection.execute(_LINES))
    jobs, attempts = Stream(published), Stream(published, "attempts")
    assert len(jobs.all()) == 20
    assert len(attempts.all()) == 10
    archived(published, retire)
    assert (jobs.all(), attempts.all()) == ([], []), "moved to the attic"
    end = """UPDATE job SET state = 'SUCCEEDED', bucket_id = gen_random_uuid(), bucket_epoch = 1,
                            changed_at = clock_timestamp() WHERE state = 'HELD'"""
    published.sql(lambda connection: connection.execute(end))
    assert len(jobs.all()) == 10
    archived(published, sweep)
    assert (jobs.all(), attempts.all()) == ([], []), "moved to a range of their own"
    again, lines = Stream(published), Stream(published, "attempts")
    assert (len(again.all()), len(lines.all())) == (30, 10), "one who begins now sees each once"


def test_a_job_that_ended_in_the_attic_is_not_seen_again_when_the_next_range_retires(
    published: PublishedCluster,
) -> None:
    """Every retirement writes the attic anew."""
    from benchmarks.support.synthetic_history import lower_floor

    published.sql(lambda connection: lower_floor(connection, 2))
    older = _OLD.replace("interval '1 day'", "interval '2 days'")
    published.sql(lambda connection: connection.execute(older, 10, "HELD"))
    first = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
    assert archived(published, lambda archive: archive.detach(first)) is not None
    jobs = Stream(published)
    end = "UPDATE job SET state = 'CANCELLED', changed_at = clock_timestamp() WHERE id IN (SELECT id FROM job LIMIT 4)"
    published.sql(lambda connection: connection.execute(end))
    assert len(jobs.all()) == 4
    archived(published, retire)
    assert jobs.all() == []
    published.sql(lambda connection: connection.execute("UPDATE job SET state = 'CANCELLED' WHERE state = 'HELD'"))
    assert len(jobs.all()) == 6, "those that ended later are new"


def test_a_line_that_is_marked_as_refused_does_not_come_again(published: PublishedCluster) -> None:
    from jobmaster.master.driver.statements import sql

    old(published, 1, "HELD")
    published.sql(lambda connection: connection.execute(_LINES))
    attempts = Stream(published, "attempts")
    assert len(attempts.all()) == 1

    async def refuse(connection: asyncpg.Connection[asyncpg.Record]) -> None:
        line = await connection.fetchrow("SELECT job_id, token, bucket_id, bucket_epoch FROM attempt")
        assert line is not None
        for _ in range(2):
            await connection.fetch(sql("outcomes/mark_refused"), *([one] for one in line))

    published.sql(refuse)
    assert published.value("SELECT refused_count FROM attempt") == 2
    assert attempts.all() == []


_TURN = 1 << 32
_DAYS_AGO = "clock_timestamp() - interval '3 days'"


def _a_turn_later(offset: dict[str, Any]) -> dict[str, Any]:
    """The offset of a stream that has read as far when the counter of transactions had made one more turn."""
    return {**offset, **{name: offset[name] + _TURN for name in ("xid", "mark_xid", "next_xid")}}


def test_rows_of_an_earlier_turn_of_the_transaction_counter_do_not_come_again(published: PublishedCluster) -> None:
    """A row has the lower 32 bits of its transaction only. Detached ranges are read, too."""
    old(published, 10)
    old(published, 5, "HELD")
    published.sql(lambda connection: connection.execute(_LINES))
    published.sql(lambda connection: connection.execute(f"UPDATE job SET changed_at = {_DAYS_AGO}"))
    published.sql(lambda connection: connection.execute(f"UPDATE attempt SET at = {_DAYS_AGO}"))
    streams = {"jobs": Stream(published), "attempts": Stream(published, "attempts")}
    first = {table: stream.at for table, stream in streams.items()}
    assert {table: len(stream.all()) for table, stream in streams.items()} == {"jobs": 10, "attempts": 5}
    for detached in (False, True):
        if detached:
            archived(published, retire)
        for table, stream in streams.items():
            end = stream.poll()
            stream.at = {**_a_turn_later(first[table]), **{name: end[name] for name in ("mark_us", "next_us")}}
            assert stream.read(_a_turn_later(end)) == [], f"{table}, detached {detached}"
            stream.at = end
    published.ended(3)
    end = streams["jobs"].poll()
    streams["jobs"].at = {**_a_turn_later(first["jobs"]), "mark_us": end["mark_us"]}
    assert len(streams["jobs"].read(_a_turn_later(end))) == 3, "new rows have a new time"


def test_the_mark_of_a_stream_moves_with_it_and_one_that_is_nearly_a_turn_behind_is_refused(
    published: PublishedCluster,
) -> None:
    stream = Stream(published)
    assert stream.at["mark_us"] == 0, "of what is there at first the time does not matter"
    for _ in range(3):
        old(published, 1)
        before = stream.at
        stream.read(stream.poll(rows=1))
        assert stream.at["mark_xid"] <= stream.at["xid"] <= stream.at["next_xid"] or stream.at == before
    while stream.all():
        pass
    old(published, 1)
    stream.all()
    assert stream.at["mark_us"] > 0
    at = stream.at
    stream.at = {**at, "mark_xid": at["mark_xid"] - (3 << 30) - 1000}
    with pytest.raises(Refused, match=r"is \d+ transactions behind"):
        stream.poll()
    stream.at = {name: at[name] for name in ("xid", "began", "system")}  # of an older version
    old(published, 2)
    assert len(stream.all()) == 2
    assert "next_us" in stream.at
