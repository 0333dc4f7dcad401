"""The program of a worker process, started by an agent with the descriptors of a socket and of a lifeline.

The main thread runs one handler after another (async handlers on a loop that stays from job to job). A second thread reads
the messages of the agent, because a running handler must be stopped from outside: a ``StopJob`` cancels the task of an async
handler, and raises ``Interrupted`` in the main thread for a plain one. The agent kills a handler that ignores both.

Several jobs may lie here. One that has not begun is given back by the second thread, also while another one runs. The start
of each job is written to the agent before it runs: whatever then happens to this process, the agent knows which job ran.

The process never outlives its agent: the agent holds the other end of the *lifeline* pipe, and when the agent has ended for
any reason, the kernel sends SIGKILL to this process and all processes that it has started. (PR_SET_PDEATHSIG alone was tried:
it spares the handler's children, fires when the *thread* that forked ends, and no thread of ours can act while a handler
holds the interpreter lock.)
"""

from __future__ import annotations

import asyncio
import faulthandler
import fcntl
import io
import logging
import os
import queue
import select
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import partial
from math import inf
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

if TYPE_CHECKING:
    from jobmaster.tracing.tracing import Tracing

from jobmaster.clock import SystemClock
from jobmaster.codec import error_of
from jobmaster.handlers import (
    Cancel,
    Decision,
    Handler,
    Handlers,
    JobContext,
    Retry,
    RetryDecision,
    Snooze,
    load_handlers,
)
from jobmaster.handlers.context import NO_RESOURCES
from jobmaster.handlers.current import set_running
from jobmaster.handlers.decisions import asked_seconds, decision_in
from jobmaster.handlers.lifespan import OpenLifespans
from jobmaster.handlers.middleware import Innermost
from jobmaster.handlers.secrets import hide_in_context
from jobmaster.model.errors import InvalidArguments
from jobmaster.model.job import ErrorInfo, Headers, Priority
from jobmaster.model.redaction import SecretTexts
from jobmaster.model.trace_context import TraceContext
from jobmaster.tracing import open_tracing
from jobmaster_agents.execute.attempt_result import AttemptResult, ResultKind
from jobmaster_agents.execute.log_records import keep_logs, keep_records
from jobmaster_agents.execute.process_pool.protocol import (
    FrameReader,
    GoOn,
    JobEnded,
    Leave,
    ProcessJob,
    Ready,
    Returned,
    RunJob,
    Setup,
    Started,
    StopJob,
    TakeBack,
    ToParent,
    ToWorker,
    encode_frame,
    to_worker,
)
from jobmaster_agents.execute.process_pool.worker_cleanup import CountingExecutor, ProcessState
from jobmaster_agents.execute.process_pool.worker_output import OutputReads, WorkerLines
from jobmaster_agents.execute.process_pool.worker_reports import LogReporter, ProgressReporter
from jobmaster_agents.execute.process_pool.worker_transaction import WorkerTransaction
from jobmaster_agents.execute.transactional.attempt import AttemptTransaction

_F_SETSIG = 10
"""Linux: which signal a descriptor with O_ASYNC sends; Python has no name for it."""
_LEFT_TASKS_SECONDS = 1.0
_LEAVE_SECONDS = 1.5
"""To leave the lifespans."""
_EXPORT_SECONDS = 0.4
"""To export the last spans; both together are less than the time after which the agent kills a worker that was to end."""
_READ_BYTES = 64 * 1024
_BODY_BYTES_MAX = 1 << 30
_AGENT_GONE = b"The worker ends itself: its agent is gone, or the job has closed the socket to it."
_LOST = 70
"""Exit code when the process cannot go on as a worker."""


class Interrupted(BaseException):
    """Raised inside a plain handler that must stop; ``except Exception`` does not catch it."""


class Worker:
    """State of the process."""

    def __init__(self, sock: socket.socket, output_reads: OutputReads) -> None:
        self._sock = sock
        self._output_reads = output_reads
        self._pid = os.getpid()
        self._frames = FrameReader(_BODY_BYTES_MAX)
        self._inbox: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        """Numbers of jobs; ``None``: leave."""
        self._given: dict[int, RunJob] = {}
        """Jobs that have not begun. The thread that takes one out, in one step of the interpreter, decides about it."""
        self._go_on = threading.Semaphore(0)
        self._outgoing = bytearray()
        """Frames of the main thread that go out with its next one."""
        self._ready_is_due = True
        self._main_thread = threading.get_ident()
        self._clock = SystemClock()
        self._handlers = Handlers()
        self._lifespans = OpenLifespans((), 0.0)
        self._lifespan_tasks: frozenset[asyncio.Task[Any]] = frozenset()
        self._setup: Setup | None = None
        self._reader = threading.Thread(target=self._read, name="jobmaster-agent-reader", daemon=True)
        self._sending = threading.Lock()
        self._reporter = ProgressReporter(self._send)
        self._log = LogReporter(self._send)
        # State that a ``StopJob`` uses. `_armed` is the number of the plain handler that runs right now, 0 = none.
        self._number = 0
        self._armed = 0
        self._stop_number = 0
        self._context: JobContext | None = None
        self._trace: TraceContext | None = None
        self._tracing: Tracing | None = None
        self._task: asyncio.Task[object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._helpers: CountingExecutor | None = None

    # ------------------------------------------------------------ messages of the agent

    def serve(self) -> None:
        """Run jobs until a ``Leave`` comes."""
        setup = self._first_frame()
        self._setup = setup
        take_over_import_path(setup)
        if setup.log_level is not None:
            configure_root_logger(setup.log_level)
        try:
            self._handlers = load_handlers(setup.handler_paths).served_by(setup.provides)
            self._open_lifespans(setup.lifespan_seconds)
        except BaseException as error:  # an import may raise any exception, SystemExit too
            self._send(Ready(error_of(error, reason="crashed", limit_bytes=setup.error_bytes)))
            raise SystemExit(_LOST) from None
        self._tracing = tracing = open_worker_tracing(setup)
        # After the import, so that a module's own signal handlers do not replace these. A plain function for SIGINT, not
        # SIG_IGN, which the handlers' own programs would inherit.
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))  # the agent may have blocked it
        self._reader.start()
        self._reporter.start()
        self._log.start()
        if keep_logs(self._handlers):
            keep_records()
        process_state = ProcessState(self._output_reads)
        while (run := self._next_job()) is not None:
            result = self._run(run)
            if replace := self._end(run.number, result, process_state, setup.growth_bytes):
                self._send(Ready(replace=replace))
                while self._inbox.get() is not None:
                    pass  # no other job begins here: the agent ends the process
        if self._loop is not None:
            self._loop.run_until_complete(self._lifespans.close(_LEAVE_SECONDS))
        if tracing is not None:
            self._open_loop().run_until_complete(tracing.close(_EXPORT_SECONDS))

    def _next_job(self) -> RunJob | None:
        """The next job, which begins now: the agent knows it. ``None``: leave."""
        while True:
            try:
                number = self._inbox.get_nowait()
            except queue.Empty:
                if self._ready_is_due:
                    self._ready_is_due = False
                    self._send(Ready())
                number = self._inbox.get()
            if number is None:
                self._send_outgoing()
                return None
            run = self._given.pop(number, None)
            if run is None:
                continue  # it was taken back
            now = self._clock.boottime()
            if now < run.start_before:
                self._ready_is_due = True
                self._send(Started(number, now))
                return run
            self._send(Returned(number))

    def _end(self, number: int, result: AttemptResult, process_state: ProcessState, growth_bytes: int) -> str:
        """Report the end of a job and restore the process. Returns why it must not run another job; empty: it may.

        The report goes out with the start of the next job; at once if the job has printed. Tasks that it has left end before:
        what they print is output of this job and not of the next one.
        """
        left = self._end_left_tasks()
        self._reporter.flush()
        self._log.flush()
        broken = ""
        try:
            process_state.restore()
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        except Exception as error:
            broken = _not_restored(error)
        printed = process_state.has_printed()
        self._outgoing += encode_frame(JobEnded(number, result, printed))
        if printed or broken:
            self._send_outgoing()
        if printed:
            self._go_on.acquire()
        replace = broken or left or self._why_unusable(process_state, growth_bytes)
        process_state.mark_output()
        return replace

    def _open_lifespans(self, seconds: float) -> None:
        self._lifespans = lifespans = OpenLifespans(self._handlers, seconds)
        if lifespans.needed:
            loop = self._open_loop()
            loop.run_until_complete(lifespans.open())
            self._lifespan_tasks = frozenset(asyncio.all_tasks(loop))

    def _first_frame(self) -> Setup:
        while True:
            data = self._sock.recv(_READ_BYTES)
            if not data:
                kill_process_group(_AGENT_GONE)
            for body in self._frames.feed(data):
                message: ToWorker = to_worker.decode(body)
                assert isinstance(message, Setup), "the first frame is the setup"
                return message

    def _read(self) -> None:
        """The reader thread."""
        data = b""  # bytes that came together with the setup are in the buffer already
        try:
            while True:
                for body in self._frames.feed(data):
                    message: ToWorker = to_worker.decode(body)
                    if isinstance(message, RunJob):
                        self._given[message.number] = message
                        self._inbox.put(message.number)
                    elif isinstance(message, StopJob | TakeBack):
                        if self._given.pop(message.number, None) is not None:
                            self._send(Returned(message.number))
                        elif isinstance(message, StopJob):
                            self._stop(message.number)
                    elif isinstance(message, GoOn):
                        self._go_on.release()
                    elif isinstance(message, Leave):
                        self._inbox.put(None)
                if not (data := self._sock.recv(_READ_BYTES)):
                    return
        finally:
            kill_process_group(_AGENT_GONE)

    def _stop(self, number: int) -> None:
        self._stop_number = number
        if number != self._number:
            return
        context, task, loop = self._context, self._task, self._loop
        if context is not None:
            context.cancelled = True
        if task is not None and loop is not None:
            loop.call_soon_threadsafe(task.cancel)
        if task is None or self._armed:  # (a plain function may run inside a task, surrounded by middleware)
            # Wakes the main thread out of a system call; `_on_signal` decides there whether it is still that job.
            signal.pthread_kill(self._main_thread, signal.SIGTERM)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # The agent acts on signals from elsewhere (a service manager stops the whole group).
        if self._armed and self._armed == self._stop_number:
            self._armed = 0
            raise Interrupted("stopped by the agent")

    def _send(self, message: ToParent) -> None:
        """Send a message; of the main thread, what it has held back goes first."""
        frame = encode_frame(message)
        if threading.get_ident() == self._main_thread and self._outgoing:
            self._outgoing += frame
            self._send_outgoing()
        else:
            self._write(frame)

    def _send_outgoing(self) -> None:
        frames, self._outgoing = self._outgoing, bytearray()
        self._write(frames)

    def _write(self, frames: bytes | bytearray) -> None:
        try:
            with self._sending:
                self._sock.sendall(frames)
        except OSError:
            kill_process_group(_AGENT_GONE)

    # ------------------------------------------------------------ one job

    def _run(self, run: RunJob) -> AttemptResult:
        job = run.job
        handler = self._handlers.get(job.handler)
        if handler is None:
            text = f"the worker process has no handler {job.handler!r}"
            return _failed(ResultKind.NOT_STARTED, ErrorInfo(type="UnknownHandler", message=text, reason="crashed"))
        started = self._clock.boottime()
        self._context = context = self._make_context(handler, job, started)
        self._log.job_id, self._trace = job.job_id, job.trace
        self._number = self._reporter.number = self._log.number = run.number
        try:
            result = self._call(handler, job, context, run.number)
        finally:
            self._number = 0
            self._context = self._task = None
        ran_us = int((self._clock.boottime() - started) * 1e6)
        return msgspec.structs.replace(result, ran_us=ran_us)

    def _make_context(self, handler: Handler, job: ProcessJob, started: float) -> JobContext:
        warn_after = handler.options.warn_after_seconds
        context: JobContext = JobContext(
            job_id_bytes=job.job_id,
            token=job.token,
            handler=job.handler,
            lane=job.lane,
            priority=Priority(job.priority),
            attempt=job.attempt,
            max_attempts=job.max_attempts,
            rescues=job.rescues,
            headers=Headers(tags=job.tags, metadata=job.metadata, snoozes=job.snoozes),
            deadline_boottime=started + job.timeout_seconds,
            warn_after=warn_after,
            overdue_boottime=inf if warn_after is None else started + warn_after,
            progress_sink=self._reporter,
            log_sink=self._log,
            keep_logs=handler.options.keep_logs,
            resources=NO_RESOURCES if handler.lifespan is None else self._lifespans.resources[handler.lifespan],
        )
        if secret := handler.options.secret:
            hide_in_context(context, SecretTexts(job.args, secret))
        return context

    def _call(self, handler: Handler, job: ProcessJob, context: JobContext, number: int) -> AttemptResult:
        assert self._setup is not None
        try:
            kwargs = handler.decode(job.args)
        except InvalidArguments as error:
            return _failed(ResultKind.ERROR, self._describe(error, "arguments"))
        work = self._transaction_of(handler, job, context)
        if work is None:
            return self._call_within(handler, kwargs, context, number, None)
        try:
            ended = self._call_within(handler, kwargs, context, number, work)
        finally:
            work.close()
        conclusion, result = work.confirmed
        # A confirmation stands, however the handler ended afterwards.
        return ended if conclusion is None else AttemptResult(kind=ResultKind.OK, result=result, conclusion=conclusion)

    def _call_within(
        self,
        handler: Handler,
        kwargs: dict[str, Any],
        context: JobContext,
        number: int,
        work: WorkerTransaction | None,
    ) -> AttemptResult:
        assert self._setup is not None
        conclusion = None
        # A copy, so that no context variable leaks into the next job.
        variables = set_running(self._lifespans.context, context)
        if self._trace is not None:
            variables.run(continue_trace, self._trace)
        plain = partial(self._call_plain, handler, context, number)
        try:
            try:
                if handler.is_async:
                    value = self._run_async(handler.run(context, kwargs), variables)
                elif handler.is_surrounded:
                    value = self._run_async(handler.run_surrounded(context, kwargs, _awaitable(plain)), variables)
                else:
                    value = variables.run(plain, kwargs)
            finally:
                self._armed = 0
                if os.getpid() != self._pid:
                    os._exit(_LOST)  # a child that the handler has forked: its parent reports for the job
            encoded = handler.encode_result(value, self._setup.result_bytes)
            if isinstance(encoded, ErrorInfo):
                return _failed(ResultKind.ERROR, encoded)
            if work is not None:
                conclusion = work.conclude(encoded)
        except BaseException as error:
            return self._raised(error, number, handler, context)
        return AttemptResult(kind=ResultKind.OK, result=encoded, conclusion=conclusion)

    def _call_plain(self, handler: Handler, context: JobContext, number: int, kwargs: dict[str, Any]) -> object:
        try:
            self._armed = number
            if self._stop_number == number:
                raise Interrupted("stopped by the agent before it began")
            return handler.invoke(context, kwargs)
        finally:
            self._armed = 0

    def _transaction_of(self, handler: Handler, job: ProcessJob, context: JobContext) -> WorkerTransaction | None:
        setup = self._setup
        assert setup is not None
        if job.success is None:
            return None
        loop, started = self._open_loop(), self._clock.boottime()
        work = WorkerTransaction(
            setup.access,
            job.success,
            loop.run_until_complete,
            lambda: int((self._clock.boottime() - started) * 1e6),
            None if handler.options.transactional else lambda value: handler.encode_result(value, setup.result_bytes),
        )
        if self._tracing is not None and isinstance(work.attempt, AttemptTransaction):
            work.attempt.trace_context = self._tracing.context
        context.runtime = work.attempt
        return work

    def _raised(self, error: BaseException, number: int, handler: Handler, context: JobContext) -> AttemptResult:
        if isinstance(error, Interrupted | asyncio.CancelledError) and self._stop_number == number:
            return _failed(ResultKind.CANCELLED, self._describe(error, "cancelled"))
        if (decision := decision_in(error)) is not None:
            return self._decided(decision)
        if isinstance(error, SystemExit):
            text = f"the handler called sys.exit({error.code!r})"
            info = self._describe(error, "crashed")
            return _failed(ResultKind.CRASHED, ErrorInfo(info.type, text, info.reason, info.traceback, info.truncated))
        return self._by_rules(error, handler, context)

    def _decided(self, decision: Decision) -> AttemptResult:
        """The handler has decided itself how its run ends."""
        if isinstance(decision, Retry):
            info = self._describe(decision, "retry")
            return AttemptResult(kind=ResultKind.RETRY, error=info, after_seconds=asked_seconds(decision))
        if isinstance(decision, Snooze):
            info = self._describe(decision, "snoozed")
            return AttemptResult(kind=ResultKind.SNOOZE, error=info, after_seconds=asked_seconds(decision))
        if isinstance(decision, Cancel):
            return _failed(ResultKind.CANCEL, self._describe(decision, "cancelled"))
        return _failed(ResultKind.FAIL, self._describe(decision, "failed"))

    def _by_rules(self, error: BaseException, handler: Handler, context: JobContext) -> AttemptResult:
        """By the rules of the handler, here and not in the agent: exceptions do not travel."""
        rules = handler.options.retry_rules
        retry_decision = RetryDecision() if rules is None else rules.decide(error, lambda: context)
        again = retry_decision.again
        return AttemptResult(
            kind=ResultKind.ERROR if again else ResultKind.FAIL,
            error=self._describe(error, "error" if again else "given_up"),
            after_seconds=retry_decision.after_seconds,
            policy_problem=retry_decision.policy_problem,
        )

    def _describe(self, error: BaseException, reason: str) -> ErrorInfo:
        assert self._setup is not None
        return error_of(error, reason=reason, limit_bytes=self._setup.error_bytes)

    def _open_loop(self) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if loop is None:
            # The loop stays: resources that handlers keep from job to job (connection pools) are bound to it.
            self._loop = loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
            self._helpers = CountingExecutor()
            loop.set_default_executor(self._helpers)
        return loop

    def _run_async(self, work: Awaitable[object], variables: Context) -> object:
        loop = self._open_loop()
        self._task = task = loop.create_task(_wait_for(work), context=variables)
        if self._stop_number == self._number:
            task.cancel()
        return loop.run_until_complete(task)

    # ------------------------------------------------------------ after it

    def _why_unusable(self, process_state: ProcessState, growth_bytes: int) -> str:
        try:
            return process_state.why_unusable(self._is_ours, growth_bytes)
        except Exception as error:  # the job has closed or broken something that cannot be restored
            return _not_restored(error)

    def _end_left_tasks(self) -> str:
        """Why the process must not run another job because of what is left on the loop; empty: it may."""
        if self._loop is None:
            return ""
        try:
            return self._end_tasks_of(self._loop)
        except Exception as error:  # the job has closed or broken the loop
            return _not_restored(error)

    def _end_tasks_of(self, loop: asyncio.AbstractEventLoop) -> str:
        tasks = asyncio.all_tasks(loop) - self._lifespan_tasks
        if self._lifespans.ended.is_set():
            return "a lifespan of the handlers has ended before its time"
        for task in tasks:
            task.cancel()
        if tasks:
            _, still_running = loop.run_until_complete(asyncio.wait(tasks, timeout=_LEFT_TASKS_SECONDS))
            if still_running:
                return f"the job left {len(still_running)} task(s) behind that do not stop when cancelled"
        if self._helpers is not None and self._helpers.busy:
            return "the job left work behind in threads of the event loop"
        return ""

    @staticmethod
    def _is_ours(thread: threading.Thread) -> bool:
        return thread.name.startswith(CountingExecutor.PREFIX)


def _not_restored(error: Exception) -> str:
    return f"it cannot be put back as it was before the job: {type(error).__name__}: {error}"


def _failed(kind: ResultKind, error: ErrorInfo) -> AttemptResult:
    return AttemptResult(kind=kind, error=error)


def _awaitable(function: Callable[[dict[str, Any]], object]) -> Innermost:
    async def call(arguments: dict[str, Any]) -> object:
        return function(arguments)

    return call


async def _wait_for(work: Awaitable[object]) -> object:
    return await work


def configure_root_logger(log_level: str) -> None:
    """Have the agent log what the handlers of this process log, with their jobs."""
    root = logging.getLogger()
    root.setLevel(log_level.upper())
    if any(isinstance(each.formatter, WorkerLines) for each in root.handlers):
        return  # the fork server had it before it imported the handlers
    to_agent = logging.StreamHandler(sys.stderr)
    to_agent.setFormatter(WorkerLines())
    root.addHandler(to_agent)


def open_worker_tracing(setup: Setup) -> Tracing | None:
    """The provider for spans of handlers, unless their modules have one; after their import."""
    if setup.traces is None:
        return None
    tracing = open_tracing(setup.traces, service="jobmaster-agent", instance=f"{socket.gethostname()}-{os.getpid()}")
    if tracing is not None:
        tracing.share()
    return tracing


def continue_trace(trace: TraceContext) -> None:
    """Have the spans of the handler in that of its run, which the agent ends."""
    from jobmaster.tracing.tracing import attach_carried

    attach_carried(trace)


def take_over_import_path(setup: Setup) -> None:
    """Use the import path of the agent, and restore the environment that the agent had."""
    sys.path[:] = setup.import_path
    if setup.python_path is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = setup.python_path


def kill_process_group(message: bytes) -> NoReturn:
    """SIGKILL this process and all processes that its jobs have started."""
    try:
        os.write(2, message + b"\n")
    except OSError:
        pass  # the reader has ended
    os.killpg(0, signal.SIGKILL)
    os._exit(_LOST)


def arm_lifeline(lifeline_fd: int) -> None:
    """Have the kernel kill this process group when the agent's end of the pipe is closed."""
    if sys.platform == "linux":
        fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline_fd, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, fcntl.fcntl(lifeline_fd, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline_fd], [], [], 0)[0]:
        kill_process_group(_AGENT_GONE)  # the agent ended before the line was armed


def close_others(*ours: int) -> None:
    """Close descriptors inherited from the agent: uvloop ignores ``close_fds``."""
    first = 3
    for fd in (*sorted(ours), os.sysconf("SC_OPEN_MAX")):
        os.closerange(first, fd)
        first = fd + 1


def main() -> None:
    """Entry of a process that was started as a new interpreter."""
    sock_fd, lifeline_fd, reads_fd = map(int, sys.argv[1:4])
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)  # the process kills its group at the end: no other process may be in it
    close_others(sock_fd, lifeline_fd, reads_fd)
    be_worker(sock_fd, lifeline_fd, reads_fd)


def be_worker(sock_fd: int, lifeline_fd: int, reads_fd: int) -> None:
    """Run jobs until the agent asks this process to leave. It leads its own process group and has these descriptors alone."""
    output_reads = OutputReads(reads_fd)
    for fd in (sock_fd, lifeline_fd):
        os.set_inheritable(fd, False)  # programs that handlers start must not inherit them
    arm_lifeline(lifeline_fd)
    faulthandler.enable()  # a crash in C leaves its Python stack in the last output
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    Worker(socket.socket(fileno=sock_fd), output_reads).serve()


if __name__ == "__main__":
    main()
