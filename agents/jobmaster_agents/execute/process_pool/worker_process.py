"""The agent's side of one worker process: start, the jobs that were given to it, stop, exit, output.

Callbacks drive it (a frame came, the process ended, a timer fired), so that no order of events leaves a job without an end:
the first event decides the result, later ones change nothing.

The worker runs one job at a time, and others may lie with it. A job has begun when the worker has written so. One that has
not begun can be taken back, and comes back by itself when the process ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from jobmaster.clock import SystemClock
from jobmaster.codec import cut_text
from jobmaster.model.job import ErrorInfo
from jobmaster_agents.execute.attempt_result import AttemptResult, ResultKind
from jobmaster_agents.execute.process_pool.protocol import (
    FrameReader,
    GoOn,
    JobEnded,
    Leave,
    Logged,
    ProcessJob,
    Progressed,
    Ready,
    Returned,
    RunJob,
    Started,
    StopJob,
    TakeBack,
    ToParent,
    ToWorker,
    encode_frame,
    to_parent,
)
from jobmaster_agents.execute.process_pool.worker_launch import LaunchedProcess, WorkerLauncher
from jobmaster_agents.execute.process_pool.worker_output import OutputLines, OutputReads, OutputTail

_FRAME_SPARE_BYTES = 64 * 1024
_LAST_FRAMES_SECONDS = 1.0
_STOPPED_TEXT = {
    ResultKind.TIMEOUT: ("Timeout", "ran longer than its timeout of {:g} s", "timeout"),
    ResultKind.CANCELLED: ("Cancelled", "cancelled while running", "cancelled"),
}

_boottime = SystemClock.boottime
"""The clock that an agent and its workers share."""


class WorkerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a worker in time, memory and output."""

    kill_grace_seconds: float = 2.0
    """Between asking a handler to stop and SIGKILL to its process group."""
    start_seconds: float = 60.0
    """For a new process to import the handlers."""
    lifespan_seconds: float = 0.0
    """For a new process to start the lifespans of the handlers, after the import."""
    start_job_seconds: float = 30.0
    """For a worker without a running job to begin the next one that was sent to it."""
    cleanup_seconds: float = 5.0
    """For a worker to clean up after a job; a slower one is replaced."""
    jobs_per_worker: int = 1000
    """Jobs after which a worker is replaced (slow leaks)."""
    growth_bytes: int = 0
    """Growth of its resident size since its first job above which a worker is replaced after its job; 0 = no limit."""
    output_kept_bytes: int = 8 * 1024
    """The error of a crash has at most so much of the end of the job's output."""
    output_bytes_per_second: int = 4 * 1024 * 1024
    """A handler that prints faster is slowed down."""


OnReport = Callable[[ProcessJob, Progressed | Logged], None]
"""Called with what the handler that runs the job has reported."""
OnOutput = Callable[[str, int, "ProcessJob | None"], None]
"""Called with each line that a worker has printed, its process id and the job that it runs."""


@dataclass(slots=True, eq=False)
class GivenJob:
    """A job that is to be given to a worker, or was.

    Args:
        on_started: called with the seconds since its start, when it has begun.
        on_ended: called once, with its result; ``None``: it has not begun and will not.
        start_within: seconds from now after which it must not begin.
        expected_seconds: how long it will probably keep the worker.
    """

    job: ProcessJob
    on_ended: Callable[[AttemptResult | None], None]
    on_started: Callable[[float], None] = lambda ago: None
    start_within: float = float("inf")
    expected_seconds: float = 0.0
    number: int = 0
    """In its worker."""
    given_at: float = 0.0
    started_at: float = 0.0
    """By the clock of the pool; 0: it has not begun."""
    cause: ResultKind | None = None
    """Why it is being stopped."""
    taken_back: bool = False
    """It has not caused the end of its worker: the worker was asked to return it, its authority to start had ended there, or
    another job or the agent has ended the worker."""
    worker: WorkerProcess | None = None


class WorkerStartFailed(Exception):
    """No worker process could be started; ``info`` has the error."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info


class WorkerProcess(asyncio.Protocol):
    """A worker process and the jobs that were given to it.

    Args:
        on_idle: called when the worker has no job.
        on_gone: called once, when the process has ended or could not be started.
        on_output: called with each line that it prints.
        on_report: called with how far a handler is, and with its lines for the log of the job.
    """

    def __init__(
        self,
        launcher: WorkerLauncher,
        limits: WorkerLimits,
        logger: logging.Logger,
        now: Callable[[], float],
        on_idle: Callable[[WorkerProcess], None],
        on_gone: Callable[[WorkerProcess], None],
        on_output: OnOutput,
        on_report: OnReport,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._setup = setup = launcher.setup
        self._limits = limits
        self._launcher = launcher
        self._logger = logger
        self._now = now
        self._on_idle = on_idle
        self._on_gone = on_gone
        self._on_report = on_report
        self.on_room: Callable[[], None] = lambda: None
        """Called when jobs have ended while others lie with it."""
        self._lines = OutputLines(lambda line: on_output(line, self.pid, self._job()))
        self._frames = FrameReader(setup.result_bytes + 2 * setup.error_bytes + _FRAME_SPARE_BYTES)
        self._transport: asyncio.WriteTransport | None = None
        self._lifeline = -1
        self._output: OutputTail | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._due: Callable[[], None] | None = None
        """What follows when the present stage (a run, a stop, the tidying-up) takes too long."""
        self._due_at = 0.0
        self._hung_up = self._loop.create_future()
        self._first_ready: asyncio.Future[Ready] = self._loop.create_future()
        self._given: dict[int, GivenJob] = {}
        """Jobs that have neither ended nor come back, in the order of their starts."""
        self._running: GivenJob | None = None
        self._number = 0
        self._begun = 0
        """Number of jobs that have begun."""
        self._cleaning = False
        """Its last job has ended, and it has not said that it is as before."""
        self.load_seconds = 0.0
        """How long the jobs that it has will probably take."""
        self._idle = False
        self._last_job = False
        self._leaving = False
        self._dead = False
        self._process: LaunchedProcess | None = None
        self._watcher: asyncio.Task[None] | None = None
        self.pid = 0

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """Start the process and wait until it has imported the handlers.

        Raises:
            StartFailed: it could not be started, ended, or was not ready in time; no process is left.
        """
        try:
            process = await self._spawn()
        except BaseException as error:
            self._close_resources()
            if not isinstance(error, OSError | ValueError):
                raise
            text = f"cannot start a worker process: {error}"
            raise WorkerStartFailed(ErrorInfo(type=type(error).__name__, message=text, reason="crashed")) from error
        self._watcher = self._loop.create_task(self._watch(process), name=f"jobmaster-worker-{process.pid}")
        self._send(self._setup)
        try:
            async with asyncio.timeout(self._limits.start_seconds + self._limits.lifespan_seconds):
                ready = await self._first_ready
        except TimeoutError:
            seconds = self._limits.start_seconds + self._limits.lifespan_seconds
            lifespans = " and start their lifespans" if self._limits.lifespan_seconds else ""
            text = f"a worker process did not import the handlers{lifespans} within {seconds:g} s"
            ready = Ready(ErrorInfo(type="Timeout", message=text, reason="crashed", traceback=self._printed()))
        except BaseException:
            self.kill()
            raise
        if ready.problem is not None:
            self.kill()
            await asyncio.wait((self._watcher,))
            raise WorkerStartFailed(ready.problem)
        self._idle = True

    async def _spawn(self) -> LaunchedProcess:
        ours, theirs = socket.socketpair()
        life_read, self._lifeline = os.pipe()
        out_read, out_write = os.pipe()
        reads = OutputReads()
        self._output = OutputTail(
            self._loop,
            out_read,
            self._limits.output_kept_bytes,
            self._limits.output_bytes_per_second,
            self._lines,
            reads,
        )
        try:
            ours.setblocking(False)
            self._transport, _ = await self._loop.create_connection(lambda: self, sock=ours)
            process = await self._launcher.launch(theirs, life_read, reads, out_write)
        finally:
            theirs.close()
            os.close(life_read)
            os.close(out_write)
            reads.close_file()
        self._process = process
        self.pid = process.pid
        return process

    async def _watch(self, process: LaunchedProcess) -> None:
        code = await process.wait()
        self._dead = True
        # The group holds the worker and children of its handlers only. They end with the worker, whatever ended it.
        self.kill()
        # Frames sent before its end count; a child that escaped with a copy of the socket must not delay this.
        await asyncio.wait((self._hung_up,), timeout=_LAST_FRAMES_SECONDS)
        if self._output is not None:
            self._output.read_available()
            self._lines.end()
        text = describe_exit(code)
        if (running := self._running) is not None:
            for each in self._given.values():
                each.taken_back = True  # the one that ran is the cause
            self._settle(running, self._died(running, text))
        elif not self._first_ready.done():
            text = f"a worker process {text} before it was ready"
            self._first_ready.set_result(
                Ready(ErrorInfo(type="WorkerDied", message=text, reason="crashed", traceback=self._printed()))
            )
        elif not self._leaving:
            self._logger.warning("worker process %d %s between two jobs; it is replaced", self.pid, text)
        self._close_resources()

    def kill(self) -> None:
        """SIGKILL the process and all processes that it has started."""
        if not self.pid:
            return
        self._signal(os.killpg)
        if self._process is not None and self._process.returncode is None:
            # In case the handler has moved it into another group. The method of the process would first ask whether it has
            # ended, and so take its exit code away from the event loop, which would then report 255.
            self._signal(os.kill)

    def _signal(self, send: Callable[[int, int], None]) -> None:
        try:
            send(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # ended, or (macOS) a zombie
            pass

    def finish(self, reason: str) -> None:
        """Stop the running job, if any, take back the others, then end the process."""
        self._last_job = True
        for given in reversed(list(self._given.values())):  # the one that runs last: its end would begin the next
            self.stop(given, ResultKind.CANCELLED)
        if not self._given:
            self.leave(reason)

    def leave(self, reason: str) -> None:
        """End the process normally, by SIGKILL after the grace time; only between two jobs."""
        if self._leaving:
            return
        self._leaving = True
        self._logger.debug("worker process %d ends: %s", self.pid, reason)
        self._send(Leave())
        self._within(self._limits.kill_grace_seconds, self.kill)

    async def wait_gone(self) -> None:
        """Wait until the process has ended and its resources are closed."""
        if self._watcher is not None:
            await asyncio.wait((self._watcher,))

    def _close_resources(self) -> None:
        self._dead = True
        self._within(None)
        self._return_all()
        if self._transport is not None:
            self._transport.close()
        if self._output is not None:
            self._output.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        self._on_gone(self)

    # ------------------------------------------------------------ jobs

    def give(self, jobs: Sequence[GivenJob]) -> None:
        """Hand over jobs, in one write; the worker must be usable, or busy with short jobs."""
        now, boottime = self._now(), _boottime()
        frames = []
        for given in jobs:
            self._number += 1
            given.number, given.given_at, given.worker = self._number, now, self
            self._given[given.number] = given
            self.load_seconds += given.expected_seconds
            frames.append(encode_frame(RunJob(given.number, given.job, boottime + given.start_within)))
        self._idle = False
        if self._running is None:
            self._within(self._limits.start_job_seconds, self.kill)
        self._write(frames)

    async def run(self, job: ProcessJob) -> AttemptResult | None:
        """Run one job; the worker must be idle. ``None``: the process has ended before the job began.

        A cancellation of the caller stops the handler (first asked, then killed) *before* it is passed on; a second
        cancellation kills at once.
        """
        assert self.usable, "a job that is awaited is the only one of its worker"
        ended: asyncio.Future[AttemptResult | None] = self._loop.create_future()
        given = GivenJob(job, lambda result: None if ended.done() else ended.set_result(result))
        self.give((given,))
        try:
            await asyncio.wait((ended,))
        except asyncio.CancelledError:
            self.stop(given, ResultKind.CANCELLED)
            try:
                await asyncio.wait((ended,))
            except asyncio.CancelledError:
                self.kill()
            raise
        return ended.result()

    @property
    def jobs(self) -> int:
        """Number of jobs that it has."""
        return len(self._given)

    @property
    def usable(self) -> bool:
        """True when it has no job and may be given one now."""
        return self._idle and not (self._dead or self._leaving or self._last_job)

    @property
    def takes_more(self) -> bool:
        """True when it runs a job and may be given others."""
        return (
            self._running is not None
            and self._running.cause is None
            and not (self._dead or self._leaving or self._last_job)
            and self._begun + len(self._given) < self._limits.jobs_per_worker
        )

    @property
    def cleaning_up(self) -> bool:
        """True when its job has ended and it will most likely be usable soon."""
        return self._cleaning and not (self._given or self._dead or self._leaving or self._last_job)

    def stop(self, given: GivenJob, cause: ResultKind) -> None:
        """Stop a job: have it returned if it has not begun; else ask its handler, and kill the process group after the grace
        time."""
        if self._given.get(given.number) is not given or given.cause is not None:
            return
        given.cause = cause
        self._send(StopJob(given.number))
        if self._running is None or given is self._running:
            self._within(self._limits.kill_grace_seconds, self.kill)

    def take_back(self, before: float) -> None:
        """Ask for the jobs that were given before a moment and have not begun."""
        frames = []
        for given in self._given.values():
            if given is not self._running and given.given_at < before and not (given.taken_back or given.cause):
                given.taken_back = True
                frames.append(encode_frame(TakeBack(given.number)))
        if frames:
            self._write(frames)

    def take_back_one(self, given: GivenJob) -> None:
        """Ask for a job unless it has begun."""
        if self._given.get(given.number) is given and given is not self._running and not given.taken_back:
            given.taken_back = True
            self._send(TakeBack(given.number))

    def _job(self) -> ProcessJob | None:
        return None if self._running is None else self._running.job

    def _forget(self, given: GivenJob) -> None:
        del self._given[given.number]
        self.load_seconds = self.load_seconds - given.expected_seconds if self._given else 0.0

    def _settle(self, given: GivenJob, result: AttemptResult) -> None:
        self._running = None
        self._forget(given)
        given.on_ended(result)

    def _return_all(self) -> None:
        for at, given in enumerate(list(self._given.values())):
            # Only the next one can be the cause, unless the agent has ended the process, or the job before has not left it.
            given.taken_back |= at > 0 or self._leaving or self._cleaning
            self._forget(given)
            given.on_ended(None)

    def _stopped(self, given: GivenJob, cause: ResultKind, how: str, ran_us: int) -> AttemptResult:
        type_, text, reason = _STOPPED_TEXT[cause]
        message = text.format(given.job.timeout_seconds) + how
        error = ErrorInfo(type=type_, message=message, reason=reason, traceback=self._printed())
        return AttemptResult(kind=cause, error=error, ran_us=ran_us)

    def _died(self, given: GivenJob, text: str) -> AttemptResult:
        ran_us = int((self._now() - given.started_at) * 1e6)
        if given.cause is not None:
            return self._stopped(given, given.cause, "; it did not stop when asked and was killed", ran_us)
        message = f"the worker process that ran the job {text}"
        error = ErrorInfo(type="WorkerDied", message=message, reason="crashed", traceback=self._printed())
        self._logger.warning("worker process %d of a job (handler %s) %s", self.pid, given.job.handler, text)
        return AttemptResult(kind=ResultKind.CRASHED, error=error, ran_us=ran_us)

    def _printed(self) -> str:
        text = self._output.text() if self._output is not None else ""
        return cut_text(f"Last output of the worker process:\n{text}", self._setup.error_bytes // 2)[0] if text else ""

    # ------------------------------------------------------------ frames

    def data_received(self, data: bytes) -> None:
        """``asyncio.Protocol``: bytes from the worker."""
        begun = self._begun
        try:
            for body in self._frames.feed(data):
                self._received(to_parent.decode(body))
        except (ValueError, msgspec.DecodeError) as error:  # the handler wrote to our socket
            self._logger.warning("worker process %d sent bytes that are no message (%s); it is killed", self.pid, error)
            self.kill()
        if self._begun != begun and not self._idle:
            self.on_room()

    def _received(self, message: ToParent) -> None:
        if isinstance(message, JobEnded):
            self._job_ended(message)
        elif isinstance(message, Started):
            self._job_started(message)
        elif isinstance(message, Progressed | Logged):
            if self._running is not None and message.number == self._running.number:
                self._on_report(self._running.job, message)
        elif isinstance(message, Returned):
            self._job_returned(message.number)
        else:
            self._became_ready(message)

    def connection_lost(self, exc: Exception | None) -> None:
        """``asyncio.Protocol``: the socket is closed. The end of the process decides, not that of the socket."""
        if not self._hung_up.done():
            self._hung_up.set_result(None)
        self._loop.call_later(self._limits.kill_grace_seconds, self._kill_if_running)

    def _kill_if_running(self) -> None:
        if self._watcher is not None and not self._watcher.done():
            self.kill()

    def _job_started(self, message: Started) -> None:
        given = self._given.get(message.number)
        if self._running is not None or given is None:
            raise ValueError("it has begun a job out of turn")
        self._running = given
        self._begun += 1
        self._cleaning = False
        ago = max(_boottime() - message.at, 0.0)
        given.started_at = self._now() - ago
        if self._output is not None:
            self._output.begin()
        if given.cause is None:
            self._within(given.job.timeout_seconds - ago, self._overdue)
        else:
            self._within(self._limits.kill_grace_seconds, self.kill)
        given.on_started(ago)

    def _overdue(self) -> None:
        if self._running is not None:
            self.stop(self._running, ResultKind.TIMEOUT)

    def _job_ended(self, message: JobEnded) -> None:
        given = self._running
        if given is None or message.number != given.number:
            return  # it ended while it was being killed
        if self._output is not None and message.printed:
            self._output.read_available()
            self._lines.end()
            self._send(GoOn())
        result = message.result
        if result.kind is ResultKind.CANCELLED and given.cause is not None:
            result = self._stopped(given, given.cause, "", result.ran_us)
        self._cleaning = True
        self._within(self._limits.cleanup_seconds, self.kill)
        self._settle(given, result)

    def _job_returned(self, number: int) -> None:
        given = self._given.get(number)
        if given is None or given is self._running:
            raise ValueError("it has returned a job that it does not have")
        given.taken_back = True
        self._forget(given)
        given.on_ended(None)
        if not (self._given or self._cleaning):
            self._within(None)
            self._next_stage()

    def _became_ready(self, message: Ready) -> None:
        if self._leaving:
            return
        if self._running is not None or self._idle:
            # Accepted as the end of the job it would give the worker a second job while the first runs.
            raise ValueError("it is ready out of turn")
        self._cleaning = False
        if not self._first_ready.done():
            self._within(None)
            self._first_ready.set_result(message)
        elif message.replace:
            self._logger.info("worker process %d is replaced: %s", self.pid, message.replace)
            self._leaving = True
            self.kill()  # what the job left behind would delay a normal exit
        elif not self._given:
            self._within(None)
            self._next_stage()

    def _next_stage(self) -> None:
        """It has no job."""
        if self._leaving or self._dead:
            return
        if self._last_job:
            self.leave("it was to end after this job")
        elif self._begun >= self._limits.jobs_per_worker:
            self.leave(f"it has run {self._begun} jobs")
        else:
            self._idle = True
            self._on_idle(self)

    def _send(self, message: ToWorker) -> None:
        self._write((encode_frame(message),))

    def _write(self, frames: Sequence[bytes]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(frames))

    def _within(self, seconds: float | None, call: Callable[[], None] | None = None) -> None:
        """Call it unless another stage begins in time. One timer serves all jobs: it is only moved when it fires."""
        self._due = call
        if call is None or seconds is None:
            if self._dead and self._timer is not None:
                self._timer.cancel()
            return
        self._due_at = due_at = _boottime() + seconds
        if self._timer is None or self._timer_at > due_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_at = self._loop.call_later(seconds, self._time_over), due_at

    def _time_over(self) -> None:
        self._timer = None
        if (call := self._due) is None:
            return
        if (left := self._due_at - _boottime()) > 0:
            self._within(left, call)
        else:
            self._due = None
            call()


def describe_exit(code: int | None) -> str:
    """How a process ended, from its return code: ``was killed by SIGSEGV``, ``ended with exit code 3``."""
    if code is None:
        return "ended, and its exit code is not known, because the fork server had ended before"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if -code == signal.SIGKILL:
        name += " (by hand, or by the kernel because memory ran out)"
    return f"was killed by {name}"
