"""The agent's side of ``spark_map``: jobs that run in this process are gathered into chunks for one Spark application.

Each job stays a run of its own, with its slot, its time-out and its identity: the handler waits here for its answer, and the
agent writes the outcome as it writes every other. So nothing here decides what becomes of a job in the master. When a job's
run ends without an answer (a cancel, a time-out, an agent that leaves), its row is forgotten; when that was the last job that
the application works for, the driver is ended at once.

One chunk is answered at a time. While it is, the next one gathers.
"""

from __future__ import annotations

import asyncio
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from contextvars import Context
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from jobmaster.handlers import JobContext
from jobmaster.model.errors import Refused, Unavailable
from jobmaster.pipeline.jobs.driver_call import drive
from jobmaster.pipeline.jobs.driver_errors import DriverError, known_error
from jobmaster.pipeline.jobs.driver_process import SparkFailed, scratch_directory
from jobmaster.pipeline.jobs.map_chunks import LENGTH, packed
from jobmaster.pipeline.jobs.orders import MapAnswer, MapOrder, MapRow

_NO_ANSWER = DriverError("", "Spark has given no answer for this job")


class SparkRowFailed(Exception):
    """The function of ``spark_map`` has given an error for this job, or has raised one."""


class MapTerms(NamedTuple):
    """When a chunk begins, and when an application ends."""

    rows: int
    """Jobs of a chunk, at most."""
    gather_seconds: float
    idle_seconds: float
    start_seconds: float = 300.0
    """How long a driver may take until it is ready for a chunk."""


class _Run:
    """One run of a job that waits for its answer."""

    def __init__(self, ctx: JobContext[Any], arguments: dict[str, Any]) -> None:
        self.ctx = ctx
        self.row = MapRow(str(ctx.job_id), arguments)
        self.answer: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self.application: MapApplication | None = None


class MapApplications:
    """The applications of one handler in this process. At most one of them takes jobs; one that ends may still be there.

    Args:
        order: makes the order for a driver, without a socket.
    """

    def __init__(self, terms: MapTerms, order: Callable[[], MapOrder]) -> None:
        self._terms, self._order = terms, order
        self._latest: MapApplication | None = None
        self._lock = threading.Lock()

    async def answer(self, ctx: JobContext[Any], arguments: dict[str, Any]) -> msgspec.Raw:
        """The result of a job, as JSON.

        Raises:
            SparkRowFailed: the function has given an error for this job, or has raised one.
            SparkFailed: the driver has ended with an error before it gave an answer.
            Fail, Retry, Cancel, Snooze: the function has raised it.
            Unavailable: a server is away, or the driver does not become ready.
            Refused: another event loop of this process runs jobs of this handler.
        """
        run = _Run(ctx, arguments)
        self._application(self._order).add(run)
        try:
            return await run.answer
        finally:
            assert run.application is not None
            await run.application.leave(run)

    def _application(self, order: Callable[[], MapOrder]) -> MapApplication:
        """One that takes jobs."""
        with self._lock:
            latest = self._latest
            if latest is not None and latest.takes_jobs:
                return latest
            if latest is not None and latest.is_elsewhere:
                raise Refused(
                    f"{latest.name}: another event loop of this process has the Spark application for jobs of this handler",
                    hint="run one agent in a process, or give the lane of this handler to one of them only",
                )
            self._latest = MapApplication(self._terms, order(), self._move)
            return self._latest

    def _move(self, runs: list[_Run], order: MapOrder) -> None:
        """Jobs that an application has not begun go to the next one."""
        try:
            following = self._application(lambda: order)
        except Refused as error:
            for run in runs:
                run.answer.set_exception(error)
            return
        for run in runs:
            following.add(run)


class MapApplication:
    """One Spark application, from its start to its end.

    Args:
        move: takes over the jobs that this application has not begun when it ends.
    """

    def __init__(self, terms: MapTerms, order: MapOrder, move: Callable[[list[_Run], MapOrder], None]) -> None:
        self._terms, self._order, self._move = terms, order, move
        self._waiting: dict[_Run, None] = {}
        self._chunk: dict[str, _Run] = {}
        """Jobs that the driver has now."""
        self._arrived = asyncio.Event()
        self._closing = self._has_answered = False
        self._late: Unavailable | None = None
        """The driver did not become ready in time."""
        self._reported: tuple[float, float | None, str] | None = None
        # In a context of its own: it is no part of the job that came first.
        self._whole = asyncio.create_task(self._run(), name="jobmaster-spark-map", context=Context())

    @property
    def name(self) -> str:
        return self._order.name

    @property
    def takes_jobs(self) -> bool:
        """False when it ends, or belongs to another event loop."""
        return not self._closing and self._whole.get_loop() is asyncio.get_running_loop()

    @property
    def is_elsewhere(self) -> bool:
        """It takes jobs of another event loop. One that has ended takes none, and has left the application as it was."""
        loop = self._whole.get_loop()
        return not self._closing and loop is not asyncio.get_running_loop() and loop.is_running()

    def add(self, run: _Run) -> None:
        """Take a job."""
        run.application = self
        self._waiting[run] = None
        self._arrived.set()

    async def leave(self, run: _Run) -> None:
        """A job's run has ended. If it had no answer and no other job is left, the driver is ended, and waited for."""
        had_begun = self._chunk.get(run.row.job) is run
        if had_begun:
            del self._chunk[run.row.job]
        elif run not in self._waiting:
            return
        self._waiting.pop(run, None)
        if not self._chunk and (had_begun or not self._waiting):
            await self._stop()

    # For ``run_driver``.

    def progress(self, done: float, total: float | None = None, text: str = "") -> None:
        """Progress of the running stages: that of each job of the chunk."""
        if (done, total, text) != self._reported:  # bars are printed again and again
            self._reported = (done, total, text)
            for run in self._chunk.values():
                run.ctx.progress(done, total, text)

    def log(self, text: str) -> None:
        """A line of the driver: kept with the job that has waited for the longest time."""
        for run in islice((*self._chunk.values(), *self._waiting), 1):
            run.ctx.log(text)

    async def _stop(self) -> None:
        """Further cancellations do not interrupt it: the agent repeats them."""
        self._closing = True
        self._whole.cancel()
        while not self._whole.done():
            try:
                await asyncio.wait([self._whole])
            except asyncio.CancelledError:
                continue

    async def _run(self) -> None:
        error: Exception | None = SparkFailed(self._order.name, 0, ())
        try:
            await self._drive()
        except asyncio.CancelledError:
            error = self._late
            raise
        except Exception as raised:  # each of its jobs raises it
            error = raised
        finally:
            self._end(error)

    def _end(self, error: Exception | None) -> None:
        """The jobs that the driver had fail. Those that it never had go to another one, unless this one has begun none."""
        self._closing = True
        begun, waiting = list(self._chunk.values()), list(self._waiting)
        self._chunk, self._waiting = {}, {}
        if error is None:
            error = Unavailable(f"{self._order.name}: the Spark application was ended")
        elif not begun and not self._has_answered:
            begun, waiting = waiting, []
        for run in begun:
            if not run.answer.done():
                run.answer.set_exception(error)
        if waiting:
            self._move(waiting, self._order)

    async def _drive(self) -> None:
        connected: asyncio.Future[tuple[StreamReader, StreamWriter]] = asyncio.get_running_loop().create_future()

        def accept(reader: StreamReader, writer: StreamWriter) -> None:
            if connected.done():
                writer.close()
            else:
                connected.set_result((reader, writer))

        with scratch_directory() as scratch:
            path = str(scratch / "chunks")
            try:
                server = await asyncio.start_unix_server(accept, path)
            except OSError as error:
                raise Unavailable(
                    f"the socket {path} of a Spark application cannot be opened: {error}",
                    hint="let SPARK_LOCAL_DIRS or TMPDIR of the agent name a directory with a short path",
                ) from error
            talk = asyncio.create_task(self._talk(connected), name="jobmaster-spark-map-chunks")
            try:
                await drive(self, msgspec.structs.replace(self._order, socket=path), scratch)
            finally:
                talk.cancel()
                try:
                    await asyncio.wait([talk])
                finally:
                    server.close()
                    if not connected.cancel() and not connected.cancelled():
                        connected.result()[1].close()
        if not talk.cancelled():
            talk.result()

    async def _talk(self, connected: asyncio.Future[tuple[StreamReader, StreamWriter]]) -> None:
        try:
            async with asyncio.timeout(self._terms.start_seconds):
                reader, writer = await connected
        except TimeoutError:
            self._late = Unavailable(
                f"{self.name}: the driver was not ready after {self._terms.start_seconds:g} s, and was ended",
                hint="look at the lines of the job; where Spark needs more time, give spark_map start_seconds",
            )
            self._closing = True
            self._whole.cancel()
            return
        try:
            while (chunk := await self._gathered(reader)) is not None:
                self._reported = None
                writer.write(packed([run.row for run in chunk]))
                await writer.drain()
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                self._settle(msgspec.json.decode(await reader.readexactly(length), type=list[MapAnswer]))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the driver has ended; its exit code tells why
        finally:
            writer.close()  # the driver ends

    async def _gathered(self, reader: StreamReader) -> list[_Run] | None:
        """The jobs of the next chunk; ``None``: the application ends. It is stopped, its driver has ended, or there was no
        job for the idle time."""
        while not self._chunk:
            if self._closing or not await self._waited(1, self._terms.idle_seconds):
                self._closing = True
                return None
            await self._waited(self._terms.rows, self._terms.gather_seconds)
            if not self.takes_jobs or reader.at_eof():
                return None  # these jobs go to the next application
            chunk = list(islice(self._waiting, self._terms.rows))
            for run in chunk:
                del self._waiting[run]
                self._chunk[run.row.job] = run
                run.ctx.progress(0, 1, f"in Spark with {len(chunk) - 1} others")
        return list(self._chunk.values())

    async def _waited(self, count: int, seconds: float) -> bool:
        """Wait until so many jobs are there; false: the time is over."""
        try:
            async with asyncio.timeout(seconds):
                while len(self._waiting) < count:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            pass
        return len(self._waiting) >= count

    def _settle(self, answers: list[MapAnswer]) -> None:
        """The answers are those of the chunk, as far as its jobs still run."""
        self._has_answered = True
        found = {answer.job: answer for answer in answers}
        runs, self._chunk = list(self._chunk.values()), {}
        for run in runs:
            if run.answer.done():
                continue
            answer = found.get(run.row.job)
            error = _NO_ANSWER if answer is None else answer.error
            if answer is not None and error is None:
                run.answer.set_result(answer.result)
            elif error is not None:
                text = f"{error.kind}: {error.message}" if error.kind else error.message
                run.answer.set_exception(known_error(self._order.name, error) or SparkRowFailed(text))
