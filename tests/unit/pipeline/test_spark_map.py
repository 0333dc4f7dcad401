"""Declarations of ``spark_map``, what an executor answers, and which jobs an application of this process works for.

The drivers are small coroutines at the other end of the socket.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from jobmaster.handlers import Fail, Handlers, JobContext, Retry, decisions
from jobmaster.model.errors import ConfigError, Refused, Unavailable
from jobmaster.model.job import Headers
from jobmaster.pipeline.jobs import SparkFailed, SparkRowFailed, map_application, map_chunks, map_functions, spark_map
from jobmaster.pipeline.jobs.driver_errors import DriverError, described, known_error
from jobmaster.pipeline.jobs.map_application import MapApplications, MapTerms
from jobmaster.pipeline.jobs.map_chunks import LENGTH, packed
from jobmaster.pipeline.jobs.map_functions import declared_map
from jobmaster.pipeline.jobs.map_rows import RowMapper
from jobmaster.pipeline.jobs.orders import MapAnswer, MapOrder, MapRow
from jobmaster.testing import job_context
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyarrow import RecordBatch

ORDER = MapOrder("m", "f", "local", {}, "app", (), None)


@dataclasses.dataclass
class Place:
    name: str
    since: datetime | None = None


class Picture(msgspec.Struct):
    path: str
    width: int = 100
    places: list[Place] = []


@dataclasses.dataclass
class Size:
    width: int
    note: str | None = None


class Odd(msgspec.Struct):
    what: complex


class Empty(msgspec.Struct):
    """No fields."""


@dataclasses.dataclass
class EmptyToo:
    """None either."""


class Taken(msgspec.Struct):
    job_id: str


def measure(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    """Never called here."""
    yield from batches


async def late(batches: Iterator[RecordBatch]) -> None: ...


# ---------------------------------------------------------------- declarations


def test_the_fields_of_the_row_are_the_arguments_of_a_job() -> None:
    handlers = Handlers()
    assert spark_map(handlers, name="pictures.measure", row=Picture, result=Size, timeout=3600)(measure) is measure
    handler = handlers.of(measure)
    assert handler is not None
    assert (handler.name, handler.spec.schema["required"]) == ("pictures.measure", ["path"])
    assert declared_map(measure).columns == (
        "`path` string, `width` bigint, `places` array<struct<`name`:string,`since`:timestamp>>"
    )


@pytest.mark.parametrize(
    ("function", "given", "said"),
    [
        (late, {"row": Picture}, "is a plain function"),
        (measure, {"row": Picture, "mode": "process"}, "has no mode"),
        (measure, {"row": Picture, "secret": "path"}, "no secret arguments"),
        (measure, {"row": Picture, "delivery": "at_most_once"}, "rows of a chunk to the function again"),
        (measure, {"row": Picture, "rows": 0}, "rows=0 is below 1"),
        (measure, {"row": Picture, "gather_seconds": -1}, "gather_seconds=-1 is below 0"),
        (measure, {"row": Picture, "rows": 2.5}, "rows=2.5 is no whole number"),
        (measure, {"row": Picture, "start_seconds": 0}, "start_seconds=0 is below 1"),
        (measure, {"row": int}, "has no fields"),
        (measure, {"row": Empty}, "Empty'> has no fields"),
        (measure, {"row": Picture, "result": Empty}, "Empty'> has no fields"),
        (measure, {"row": Picture, "result": EmptyToo}, "EmptyToo'> has no fields"),
        (measure, {"row": Odd}, "no column of Spark"),
        (measure, {"row": Taken}, "cannot be named 'job_id'"),
    ],
)
def test_what_cannot_be_rows_of_spark_is_refused(function: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        spark_map(Handlers(), **given)(function)
    assert said in str(caught.value)


async def test_a_job_that_may_be_started_once_fails_before_an_application_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[object] = []
    monkeypatch.setattr(MapApplications, "answer", lambda *given: begun.append(given))
    handlers = Handlers()
    spark_map(handlers, name="pictures.measure", row=Picture)(measure)
    handler = handlers.of(measure)
    assert handler is not None
    ctx = msgspec.structs.replace(job_context(), headers=Headers(at_most_once=True))
    with pytest.raises(Fail, match="The function was not called"):
        await handler.function(ctx, path="a.png")
    assert begun == []


# ---------------------------------------------------------------- in an executor


def answers(
    function: Callable[[Iterator[RecordBatch]], Iterator[RecordBatch]], *batches: dict[str, Any], result: Any = Size
) -> dict[str, Any]:
    """Of each job its result, or its error as ``kind: message``. A batch is its jobs with their numbers."""
    import pyarrow as pa

    given = iter([pa.RecordBatch.from_pydict({"job_id": list(one), "n": list(one.values())}) for one in batches])
    found: dict[str, Any] = {}
    for answer in RowMapper(function, result).answers(given):
        for row in answer.to_pylist():
            assert row["job"] not in found, "a job has one answer"
            if row["error"] is not None:
                error = msgspec.json.decode(row["error"], type=DriverError)
                found[row["job"]] = f"{error.kind}: {error.message}"
            else:
                found[row["job"]] = msgspec.json.decode(row["result"], type=result)
    return found


def rows(*found: dict[str, Any]) -> RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_pylist(list(found))


def test_each_job_has_the_result_or_the_error_of_its_row() -> None:
    pytest.importorskip("pyarrow", reason="the extra `pipeline` is not installed")

    def odd_ones_fail(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        for batch in batches:
            yield rows(
                *(
                    {"job_id": row["job_id"], "width": row["n"], "error": "odd" if row["n"] % 2 else None}
                    for row in reversed(batch.to_pylist())
                )
            )

    assert answers(odd_ones_fail, {"a": 2, "b": 3}, {"c": 4}) == {
        "a": Size(2),
        "b": ": odd",
        "c": Size(4),
    }


def test_what_the_function_raises_is_the_error_of_the_jobs_that_it_has_in_hand() -> None:
    pytest.importorskip("pyarrow", reason="the extra `pipeline` is not installed")

    def stops(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        for batch in batches:
            first, *others = batch.to_pylist()
            yield rows({"job_id": first["job_id"], "width": first["n"]})
            if others:
                raise Retry(5, "busy")

    found = answers(stops, {"a": 1, "b": 2, "c": 3}, {"d": 4}, result=dict[str, int])
    assert found == {"a": {"width": 1}, "b": "Retry: busy", "c": "Retry: busy", "d": {"width": 4}}


@pytest.mark.parametrize(
    ("yielded", "said"),
    [
        ([{"width": 1}], "without the column 'job_id'"),
        ([{"job_id": "z", "width": 1}], "a row for job z, which waits for none"),
        ([{"job_id": "a", "width": 1}, {"job_id": "a", "width": 1}], "a row for job a, which waits for none"),
        ([{"job_id": "a", "width": 1}], "yielded no row for this job"),
        ([{"job_id": "a", "width": None}, {"job_id": "b", "width": 1}], "not of the declared result"),
    ],
)
def test_a_function_that_breaks_the_rules_fails_the_jobs_that_it_has_not_answered(
    yielded: list[dict[str, Any]], said: str
) -> None:
    pytest.importorskip("pyarrow", reason="the extra `pipeline` is not installed")

    def breaks(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        for batch in batches:
            yield rows(*yielded) if "a" in batch.column("job_id").to_pylist() else rows({"job_id": "c", "width": 3})

    found = answers(breaks, {"a": 1, "b": 2}, {"c": 3})
    assert set(found) == {"a", "b", "c"}
    assert found["c"] == Size(3)
    assert any(said in str(answer) for answer in found.values()), found


@pytest.mark.parametrize("raises", [True, False])
def test_a_function_that_takes_nothing_is_called_once(raises: bool) -> None:
    pytest.importorskip("pyarrow", reason="the extra `pipeline` is not installed")
    calls = []

    def takes_nothing(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        calls.append(batches)
        if raises:
            raise Fail("no model")
        return iter(())

    found = answers(takes_nothing, {"a": 1}, {"b": 2})
    assert set(found) == {"a", "b"}
    assert len(calls) == 1
    assert len(set(found.values())) == 1


def test_maps_come_back_as_dictionaries_and_what_json_cannot_hold_is_the_error_of_its_row() -> None:
    pa = pytest.importorskip("pyarrow", reason="the extra `pipeline` is not installed")

    def counts(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        for batch in batches:
            maps = pa.array([[("k", n)] for n in batch.column("n").to_pylist()], pa.map_(pa.string(), pa.float64()))
            yield pa.RecordBatch.from_arrays([batch.column("job_id"), maps], ["job_id", "m"])

    found = answers(counts, {"a": 1, "b": float("nan")}, result=dict[str, dict[str, float]])
    assert found["a"] == {"m": {"k": 1.0}}
    assert "not of the declared result" in found["b"]


def test_an_exception_of_foreign_code_decides_nothing_by_its_name() -> None:
    class Fail(Exception):
        pass

    assert known_error("app", described(Fail("half a surrogate \ud800"))) is None
    assert known_error("app", described(decisions.Fail("no model"))) is not None
    msgspec.json.encode(described(Fail("half a surrogate \ud800")))


class Inner(msgspec.Struct, rename="camel", omit_defaults=True):
    max_width: int = 7


class Renamed(msgspec.Struct, rename="camel"):
    max_width: int = 100
    inner_part: Inner = msgspec.field(default_factory=Inner)
    since: datetime | None = None

    def __post_init__(self) -> None:
        if self.max_width < 0:
            raise ValueError("it is below 0")


def test_a_row_has_its_fields_by_name_whatever_an_encoder_makes_of_them() -> None:
    row = map_functions._columns(Renamed, dict[str, int], "h")[0]
    assert row.columns == ("`max_width` bigint, `inner_part` struct<`max_width`:bigint>, `since` timestamp")
    assert map_chunks._values(row, {"max_width": 5, "inner_part": {"maxWidth": 9}}) == [5, {"max_width": 9}, None]
    assert map_chunks._values(row, {"inner_part": {}}) == [100, {"max_width": 7}, None]
    (*_, since) = map_chunks._values(row, {"since": "2030-01-31T00:00:00"})
    assert since == datetime(2030, 1, 31, tzinfo=UTC)
    for arguments, said in (
        ({"max_width": -1}, "below 0"),
        ({"max_width": 2**63}, "64 bits"),
        ({"max_width": "x"}, "int"),
    ):
        with pytest.raises((ValueError, msgspec.ValidationError), match=said):
            map_chunks._values(row, arguments)


# ---------------------------------------------------------------- in an agent


class Drivers:
    """Applications of this process whose drivers are played: each runs ``play`` at the other end of the socket."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started = 0
        self.tasks: list[asyncio.Task[Any] | None] = []
        self.running = 0
        self.chunks: list[list[MapRow]] = []
        self.refusal: Exception | None = None
        """Of a driver that does not start."""
        self.hangs = False
        """While it starts."""
        self.play: Callable[[Driver], Coroutine[Any, Any, None]] = answer_all
        monkeypatch.setattr(map_application, "drive", self._drive)

    async def _drive(self, reports: Any, order: MapOrder, scratch: Path) -> None:
        self.started += 1
        self.tasks.append(asyncio.current_task())
        if self.refusal is not None:
            raise self.refusal
        self.running += 1
        try:
            if self.hangs:
                await asyncio.Event().wait()
            reader, writer = await asyncio.open_unix_connection(order.socket)
            try:
                await self.play(Driver(self, reports, reader, writer))
            finally:
                writer.close()
        finally:
            self.running -= 1


class Driver:
    """One of them."""

    def __init__(self, all_: Drivers, reports: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.all, self.reports, self.reader, self.writer = all_, reports, reader, writer

    async def take(self) -> list[MapRow] | None:
        """The next chunk; ``None``: the agent has closed the socket."""
        head = await self.reader.read(LENGTH.size)
        if not head:
            return None
        text = await self.reader.readexactly(LENGTH.unpack(head)[0])
        chunk = msgspec.json.decode(text, type=list[MapRow])
        self.all.chunks.append(chunk)
        return chunk

    def give(self, chunk: list[MapRow]) -> None:
        """An error for each job without a number, else twice the number."""
        self.writer.write(
            packed(
                [
                    MapAnswer(row.job, None, msgspec.Raw(msgspec.json.encode(2 * row.arguments["n"])))
                    if "n" in row.arguments
                    else MapAnswer(row.job, DriverError("ValueError", "no number"), msgspec.Raw(b"null"))
                    for row in chunk
                ]
            )
        )


async def answer_all(driver: Driver) -> None:
    while (chunk := await driver.take()) is not None:
        driver.give(chunk)


async def hang(driver: Driver) -> None:
    await driver.take()
    await asyncio.Event().wait()


@pytest.fixture
async def drivers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Drivers]:
    made = Drivers(monkeypatch)
    yield made
    here = asyncio.get_running_loop()
    await asyncio.gather(*(one for one in made.tasks if one and one.get_loop() is here), return_exceptions=True)


def applications(
    size: int = 100, idle: float = 0.0, gather: float = 0.0, start: float = PATIENCE_SECONDS
) -> MapApplications:
    return MapApplications(MapTerms(size, gather, idle, start), lambda: ORDER)


def run(all_: MapApplications, context: JobContext[Any] | None = None, **arguments: int) -> asyncio.Task[Any]:
    return asyncio.create_task(all_.answer(context or job_context(), arguments))


async def test_jobs_that_come_together_are_one_chunk_and_each_has_its_answer(drivers: Drivers) -> None:
    all_ = applications(size=3)
    good = [run(all_, n=n) for n in range(4)]
    bad = run(all_)
    assert [bytes(await one) for one in good] == [b"0", b"2", b"4", b"6"]
    with pytest.raises(SparkRowFailed, match="ValueError: no number"):
        await bad
    assert [len(chunk) for chunk in drivers.chunks] == [3, 2]
    assert drivers.started == 1


async def test_a_chunk_waits_for_the_jobs_that_it_has_room_for(drivers: Drivers) -> None:
    all_ = applications(size=2, gather=3600)
    first = run(all_, n=1)
    await until(lambda: drivers.running)
    assert not drivers.chunks
    second = run(all_, n=2)
    await asyncio.gather(first, second)
    assert [len(chunk) for chunk in drivers.chunks] == [2]


async def test_an_application_that_was_idle_ends_and_the_next_job_starts_another(drivers: Drivers) -> None:
    all_ = applications()
    await run(all_, n=1)
    await until(lambda: not drivers.running)
    await run(all_, n=2)
    assert drivers.started == 2


async def test_a_job_that_is_cancelled_leaves_the_others(drivers: Drivers) -> None:
    go = asyncio.Event()

    async def slow(driver: Driver) -> None:
        while (chunk := await driver.take()) is not None:
            await go.wait()
            driver.give(chunk)

    drivers.play = slow
    all_ = applications()
    left, stays = run(all_, n=1), run(all_, n=2)
    await until(lambda: drivers.chunks)
    left.cancel()
    await asyncio.wait([left])
    assert left.cancelled()
    go.set()
    assert bytes(await stays) == b"4"
    assert drivers.started == 1


async def test_when_the_last_job_is_cancelled_its_driver_has_ended_first(drivers: Drivers) -> None:
    drivers.play = hang
    all_ = applications(idle=3600)
    runs = [run(all_, n=n) for n in range(3)]
    await until(lambda: drivers.chunks)
    for one in runs:
        one.cancel()
    await asyncio.wait(runs)
    assert all(one.cancelled() for one in runs)
    assert drivers.running == 0


async def test_jobs_that_wait_behind_a_cancelled_chunk_go_to_another_application(drivers: Drivers) -> None:
    drivers.play = hang
    all_ = applications(size=1)
    first, second = run(all_, n=1), run(all_, n=2)
    await until(lambda: drivers.chunks)
    drivers.play = answer_all
    first.cancel()
    assert bytes(await second) == b"4"
    assert drivers.started == 2


async def test_a_driver_that_answers_while_it_is_ended_gets_no_further_jobs(drivers: Drivers) -> None:
    late = []

    async def answers_late(driver: Driver) -> None:
        chunk = await driver.take()
        assert chunk is not None
        try:
            await asyncio.Event().wait()
        finally:
            drivers.play = answer_all
            driver.give(chunk)
            late.append(await driver.take())

    drivers.play = answers_late
    all_ = applications(size=1)
    first, second = run(all_, n=1), run(all_, n=2)
    await until(lambda: drivers.chunks)
    first.cancel()
    assert bytes(await second) == b"4"
    assert late == [None]


async def test_a_socket_that_cannot_be_opened_is_one_sentence(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(deep))
    with pytest.raises(Unavailable, match="cannot be opened: AF_UNIX path too long") as caught:
        await run(applications(), n=1)
    assert "short path" in str(caught.value.hint)


async def test_the_death_of_a_driver_fails_the_jobs_that_it_had_and_no_others(drivers: Drivers) -> None:
    async def dies(driver: Driver) -> None:
        first = await driver.take()
        assert first is not None
        driver.give(first)
        await driver.take()
        drivers.play = answer_all
        raise SparkFailed("app", 137, ())

    drivers.play = dies
    all_ = applications(size=1)
    done, failed, later = (run(all_, n=n) for n in range(1, 4))
    assert bytes(await done) == b"2"
    with pytest.raises(SparkFailed, match="137"):
        await failed
    assert bytes(await later) == b"6"
    assert [chunk[0].arguments["n"] for chunk in drivers.chunks] == [1, 2, 3]


async def test_an_application_that_does_not_start_fails_all_jobs_that_wait_for_it(drivers: Drivers) -> None:
    drivers.refusal = Unavailable("no such host")
    all_ = applications(size=1, gather=3600, idle=3600)
    for outcome in await asyncio.gather(*(run(all_, n=n) for n in range(3)), return_exceptions=True):
        assert isinstance(outcome, Unavailable)
    assert drivers.started == 1


async def test_a_driver_that_hangs_while_it_starts_is_ended_and_replaced(drivers: Drivers) -> None:
    drivers.hangs = True
    all_ = applications(start=0.01)
    async with asyncio.timeout(PATIENCE_SECONDS):
        outcomes = await asyncio.gather(*(run(all_, n=n) for n in range(3)), return_exceptions=True)
    for outcome in outcomes:
        assert isinstance(outcome, Unavailable)
        assert "app: the driver was not ready after 0.01 s" in str(outcome)
    assert (drivers.started, drivers.running) == (1, 0)
    drivers.hangs = False
    all_ = applications()
    assert bytes(await run(all_, n=1)) == b"2"


async def test_a_job_that_comes_while_a_late_driver_is_ended_goes_to_the_next_one(drivers: Drivers) -> None:
    ending, end = asyncio.Event(), asyncio.Event()

    async def late(_: Any, order: MapOrder, scratch: Path) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await end.wait()

    all_ = applications(start=0.01)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(map_application, "drive", late)
        first = run(all_, n=1)
        await ending.wait()
    all_._terms = all_._terms._replace(start_seconds=PATIENCE_SECONDS)
    assert bytes(await run(all_, n=2)) == b"4"
    end.set()
    with pytest.raises(Unavailable, match="was not ready"):
        await first


async def test_a_second_event_loop_of_a_process_is_refused_while_the_first_one_runs(drivers: Drivers) -> None:
    def elsewhere() -> bytes:
        return bytes(asyncio.run(asyncio.wait_for(all_.answer(job_context(), {"n": 2}), PATIENCE_SECONDS)))

    drivers.play = hang
    all_ = applications()
    first = run(all_, n=1)
    await until(lambda: drivers.chunks)
    with pytest.raises(Refused, match="another event loop of this process has the Spark application") as caught:
        await asyncio.to_thread(elsewhere)
    assert "one agent in a process" in str(caught.value.hint)
    assert drivers.started == 1
    first.cancel()
    await asyncio.wait([first])
    drivers.play = answer_all
    assert await asyncio.to_thread(elsewhere) == b"4"
    assert bytes(await run(all_, n=3)) == b"6", "the other loop has ended"


async def test_progress_is_that_of_each_job_of_the_chunk_and_lines_belong_to_the_first(drivers: Drivers) -> None:
    go = asyncio.Event()

    async def reports(driver: Driver) -> None:
        chunk = await driver.take()
        assert chunk is not None
        driver.reports.log("a line")
        driver.reports.progress(3, 10, "stage 2")
        await go.wait()
        driver.give(chunk)
        await driver.take()

    class Lines:
        def __init__(self) -> None:
            self.jobs: list[bytes] = []

        def keep(self, job: bytes, *_: Any) -> None:
            self.jobs.append(job)

    drivers.play = reports
    lines: Any = Lines()
    contexts = [job_context(log_sink=lines) for _ in range(2)]
    all_ = applications()
    runs = [run(all_, context, n=1) for context in contexts]
    await until(lambda: contexts[1].last_progress is not None and contexts[1].last_progress.done == 3)
    assert [one.last_progress.text for one in contexts if one.last_progress] == ["stage 2"] * 2
    assert lines.jobs == [contexts[0].job_id_bytes]
    go.set()
    await asyncio.gather(*runs)


def test_times_reach_the_function_as_times() -> None:
    from jobmaster.pipeline.jobs.map_chunks import _values

    spark_map(Handlers(), name="times", row=Picture, result=Size)(measure)
    arguments = {"path": "a", "places": [{"name": "x", "since": "2030-01-31T00:00:00Z"}]}
    assert _values(declared_map(measure), arguments) == [
        "a",
        100,
        [{"name": "x", "since": datetime(2030, 1, 31, tzinfo=UTC)}],
    ]


async def test_a_driver_that_ends_between_two_chunks_fails_no_job_that_it_never_had(drivers: Drivers) -> None:
    ended = asyncio.Event()

    async def one_chunk(driver: Driver) -> None:
        chunk = await driver.take()
        assert chunk is not None
        driver.give(chunk)
        if drivers.started == 1:
            driver.writer.close()  # as a killed process does
            await ended.wait()  # its exit is seen later
            raise SparkFailed("app", -9, ())
        await answer_all(driver)

    drivers.play = one_chunk
    all_ = applications(idle=1.0, gather=0.01)
    assert bytes(await run(all_, n=1)) == b"2"
    second = run(all_, n=2)
    await until(lambda: second in asyncio.all_tasks())
    ended.set()
    assert bytes(await second) == b"4"
    assert drivers.started == 2
