"""The agent's side of one worker process: start, one job at a time, stop, exit, output.

Callbacks drive it (a frame came, the process ended, a timer fired), so that no order of events leaves a job without an end:
the first event decides the result, later ones change nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import msgspec

from jobmaster.codec import cut_text
from jobmaster.model.job import ErrorInfo
from jobmaster_agents.execute.attempt_result import AttemptResult, ResultKind
from jobmaster_agents.execute.process_pool.protocol import (
    FrameReader,
    JobEnded,
    Leave,
    Logged,
    ProcessJob,
    Progressed,
    Ready,
    RunJob,
    Setup,
    StopJob,
    ToWorker,
    encode_frame,
    to_parent,
)
from jobmaster_agents.execute.process_pool.worker_output import OutputLines, OutputTail

_FRAME_SPARE_BYTES = 64 * 1024
_LAST_FRAMES_SECONDS = 1.0
_STOPPED_TEXT = {
    ResultKind.TIMEOUT: ("Timeout", "ran longer than its timeout of {:g} s", "timeout"),
    ResultKind.CANCELLED: ("Cancelled", "cancelled while running", "cancelled"),
}

_PROGRAM = "jobmaster_agents.execute.process_pool.worker_main"


class WorkerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a worker in time, memory and output."""

    kill_grace_seconds: float = 2.0
    """Between asking a handler to stop and SIGKILL to its process group."""
    start_seconds: float = 60.0
    """For a new process to import the handlers."""
    lifespan_seconds: float = 0.0
    """For a new process to start the lifespans of the handlers, after the import."""
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


class WorkerStartFailed(Exception):
    """No worker process could be started; ``info`` has the error."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info


class WorkerProcess(asyncio.Protocol):
    """A worker process and the job it runs.

    Args:
        on_idle: called when the worker may run another job.
        on_gone: called once, when the process has ended or could not be started.
        on_output: called with each line that it prints.
        on_report: called with how far a handler is, and with its lines for the log of the job.
    """

    def __init__(
        self,
        setup: Setup,
        limits: WorkerLimits,
        logger: logging.Logger,
        now: Callable[[], float],
        on_idle: Callable[[WorkerProcess], None],
        on_gone: Callable[[WorkerProcess], None],
        on_output: OnOutput,
        on_report: OnReport,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._setup = setup
        self._limits = limits
        self._logger = logger
        self._now = now
        self._on_idle = on_idle
        self._on_gone = on_gone
        self._on_report = on_report
        self._lines = OutputLines(lambda line: on_output(line, self.pid, self._job))
        self._frames = FrameReader(setup.result_bytes + 2 * setup.error_bytes + _FRAME_SPARE_BYTES)
        self._transport: asyncio.WriteTransport | None = None
        self._lifeline = -1
        self._output: OutputTail | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._hung_up = self._loop.create_future()
        self._first_ready: asyncio.Future[Ready] = self._loop.create_future()
        self._ended: asyncio.Future[AttemptResult] | None = None
        self._cause: ResultKind | None = None
        self._job: ProcessJob | None = None
        self._number = 0
        self.started_at = 0.0
        """When it was given its job, by ``now``."""
        self._idle = False
        self._last_job = False
        self._leaving = False
        self._dead = False
        self._process: asyncio.subprocess.Process | None = None
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

    async def _spawn(self) -> asyncio.subprocess.Process:
        ours, theirs = socket.socketpair()
        life_read, self._lifeline = os.pipe()
        out_read, out_write = os.pipe()
        self._output = OutputTail(
            self._loop, out_read, self._limits.output_kept_bytes, self._limits.output_bytes_per_second, self._lines
        )
        try:
            ours.setblocking(False)
            self._transport, _ = await self._loop.create_connection(lambda: self, sock=ours)
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", _PROGRAM, str(theirs.fileno()), str(life_read),
                stdin=subprocess.DEVNULL, stdout=out_write, stderr=out_write, close_fds=True,
                pass_fds=(theirs.fileno(), life_read), start_new_session=True,
                # Only until the child has read the setup: it then uses our sys.path and restores the variable.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(self._setup.import_path)},
            )  # fmt: skip
        finally:
            theirs.close()
            os.close(life_read)
            os.close(out_write)
        self._process = process
        self.pid = process.pid
        return process

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        self._dead = True
        # The group holds the worker and children of its handlers only. They end with the worker, whatever ended it.
        self.kill()
        # Frames sent before its end count; a child that escaped with a copy of the socket must not delay this.
        await asyncio.wait((self._hung_up,), timeout=_LAST_FRAMES_SECONDS)
        if self._output is not None:
            self._output.read_available()
        text = describe_exit(code)
        if self._ended is not None:
            self._settle(self._died(text))
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
        """Stop the running job, if any, then end the process."""
        self._last_job = True
        if self._ended is None:
            self.leave(reason)
        else:
            self.stop(ResultKind.CANCELLED)

    def leave(self, reason: str) -> None:
        """End the process normally, by SIGKILL after the grace time; only between two jobs."""
        if self._leaving:
            return
        self._leaving = True
        self._logger.debug("worker process %d ends: %s", self.pid, reason)
        self._send(Leave())
        self._later(self._limits.kill_grace_seconds, self.kill)

    async def wait_gone(self) -> None:
        """Wait until the process has ended and its resources are closed."""
        if self._watcher is not None:
            await asyncio.wait((self._watcher,))

    def _close_resources(self) -> None:
        self._dead = True
        self._cancel_timers()
        if self._transport is not None:
            self._transport.close()
        if self._output is not None:
            self._output.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        self._on_gone(self)

    # ------------------------------------------------------------ one job

    async def run(self, job: ProcessJob) -> AttemptResult:
        """Run one job; the worker must be idle.

        A cancellation of the caller stops the handler (first asked, then killed) *before* it is passed on; a second
        cancellation kills at once.
        """
        assert self.usable, "a worker runs one job at a time"
        self._ended = ended = self._loop.create_future()
        self._job = job
        self._idle = False
        self._cause = None
        self._number += 1
        self.started_at = self._now()
        if self._output is not None:
            self._output.begin()
        self._send(RunJob(self._number, job))
        self._later(job.timeout_seconds, self.stop, ResultKind.TIMEOUT)
        try:
            await asyncio.wait((ended,))
        except asyncio.CancelledError:
            self.stop(ResultKind.CANCELLED)
            try:
                await asyncio.wait((ended,))
            except asyncio.CancelledError:
                self.kill()
            raise
        result: AttemptResult = ended.result()
        return result

    @property
    def usable(self) -> bool:
        """True when it may be given a job now."""
        return self._idle and not (self._dead or self._leaving or self._last_job)

    @property
    def cleaning_up(self) -> bool:
        """True when its job has ended and it will most likely be usable soon."""
        return not (self._idle or self._dead or self._leaving or self._last_job) and self._ended is None

    def stop(self, cause: ResultKind) -> None:
        """Stop the running job: ask its handler, kill the process group after the grace time."""
        if self._ended is None:
            return
        if self._cause is None:
            self._cause = cause
            self._send(StopJob(self._number))
            self._later(self._limits.kill_grace_seconds, self.kill)

    def _settle(self, result: AttemptResult) -> None:
        if self._output is not None:
            self._output.read_available()  # output from before the result
            self._lines.end()
        ended, self._ended, self._job = self._ended, None, None
        self._cancel_timers()
        if ended is not None and not ended.done():
            ended.set_result(result)

    def _stopped(self, cause: ResultKind, how: str, ran_us: int) -> AttemptResult:
        assert self._job is not None
        type_, text, reason = _STOPPED_TEXT[cause]
        message = text.format(self._job.timeout_seconds) + how
        error = ErrorInfo(type=type_, message=message, reason=reason, traceback=self._printed())
        return AttemptResult(kind=cause, error=error, ran_us=ran_us)

    def _died(self, text: str) -> AttemptResult:
        ran_us = int((self._now() - self.started_at) * 1e6)
        if self._cause is not None:
            return self._stopped(self._cause, "; it did not stop when asked and was killed", ran_us)
        message = f"the worker process that ran the job {text}"
        error = ErrorInfo(type="WorkerDied", message=message, reason="crashed", traceback=self._printed())
        self._logger.warning(
            "worker process %d of a job (handler %s) %s", self.pid, self._job and self._job.handler, text
        )
        return AttemptResult(kind=ResultKind.CRASHED, error=error, ran_us=ran_us)

    def _printed(self) -> str:
        text = self._output.text() if self._output is not None else ""
        return cut_text(f"Last output of the worker process:\n{text}", self._setup.error_bytes // 2)[0] if text else ""

    # ------------------------------------------------------------ frames

    def data_received(self, data: bytes) -> None:
        """``asyncio.Protocol``: bytes from the worker."""
        try:
            for body in self._frames.feed(data):
                message = to_parent.decode(body)
                if isinstance(message, Progressed | Logged):
                    if self._job is not None and message.number == self._number:
                        self._on_report(self._job, message)
                elif isinstance(message, JobEnded):
                    self._job_ended(message)
                else:
                    self._became_ready(message)
        except (ValueError, msgspec.DecodeError) as error:  # the handler wrote to our socket
            self._logger.warning("worker process %d sent bytes that are no message (%s); it is killed", self.pid, error)
            self.kill()

    def connection_lost(self, exc: Exception | None) -> None:
        """``asyncio.Protocol``: the socket is closed. The end of the process decides, not that of the socket."""
        if not self._hung_up.done():
            self._hung_up.set_result(None)
        self._loop.call_later(self._limits.kill_grace_seconds, self._kill_if_running)

    def _kill_if_running(self) -> None:
        if self._watcher is not None and not self._watcher.done():
            self.kill()

    def _job_ended(self, message: JobEnded) -> None:
        if self._ended is None or message.number != self._number:
            return  # it ended while it was being killed
        result = message.result
        if result.kind is ResultKind.CANCELLED and self._cause is not None:
            result = self._stopped(self._cause, "", result.ran_us)
        self._settle(result)
        self._later(self._limits.cleanup_seconds, self.kill)

    def _became_ready(self, message: Ready) -> None:
        if self._leaving:
            return
        if self._ended is not None or self._idle:
            # Accepted as the end of the job it would give the worker a second job while the first runs.
            raise ValueError("it is ready out of turn")
        self._cancel_timers()
        if not self._first_ready.done():
            self._first_ready.set_result(message)
        elif message.replace:
            self._logger.info("worker process %d is replaced: %s", self.pid, message.replace)
            self._leaving = True
            self.kill()  # what the job left behind would delay a normal exit
        elif self._last_job:
            self.leave("it was to end after this job")
        elif self._number >= self._limits.jobs_per_worker:
            self.leave(f"it has run {self._number} jobs")
        else:
            self._idle = True
            self._on_idle(self)

    def _send(self, message: ToWorker) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame(message))

    def _later(self, seconds: float, callback: Callable[..., None], *args: object) -> None:
        self._timers.append(self._loop.call_later(seconds, callback, *args))

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()


def describe_exit(code: int) -> str:
    """How a process ended, from its return code: ``was killed by SIGSEGV``, ``ended with exit code 3``."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if -code == signal.SIGKILL:
        name += " (by hand, or by the kernel because memory ran out)"
    return f"was killed by {name}"
