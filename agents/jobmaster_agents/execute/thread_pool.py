"""Runs plain functions in threads; results come back to the loop in batches.

``loop.run_in_executor`` costs a future pair, a work item and a loop wake-up per job. Here jobs go through one deque, an
idle thread is woken only when no woken thread is on its way (a woken thread wakes the next before it runs its job, so
blocking jobs spread over all threads and very short jobs stay on one), and finished jobs come back in batches: one loop
wake-up delivers all jobs that ended until the loop turned.

A thread cannot be killed. A thread whose job is stopped is *quarantined*: its late result is dropped, another thread takes
its place, and it ends when its job does. When as many threads are quarantined as the pool has, ``exhausted`` is set: the
process should be replaced.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import threading
from collections import deque
from collections.abc import Callable, Mapping
from math import inf
from typing import NamedTuple

from jobmaster.model.errors import Unavailable

OnDone = Callable[[BaseException | None, object, int], None]
"""Called on the loop with (error or ``None``, result, microseconds the job ran)."""


class ThreadJob:
    """One submitted call: the handle for ``quarantine``."""

    __slots__ = (
        "_context",
        "_fn",
        "_kwargs",
        "_on_done",
        "error",
        "over",
        "quarantined",
        "ran_us",
        "result",
        "start_before",
        "started_at",
    )

    def __init__(
        self, fn: Callable[..., object], kwargs: Mapping[str, object], on_done: OnDone, context: contextvars.Context
    ) -> None:
        self._context = context
        self._fn = fn
        self._kwargs = kwargs
        self._on_done = on_done
        self.started_at: float | None = None
        """When a thread took the job, by the clock of the pool; ``None`` while it waits for a thread."""
        self.start_before = inf
        """When the authority to start it ends, by the clock of the pool. Later it ends with ``TooLate`` and has not begun."""
        self.over = False
        self.quarantined = False
        self.error: BaseException | None = None
        self.result: object = None
        self.ran_us = 0

    def run(self, now: Callable[[], float]) -> None:
        """In the thread: call the function in its context and keep its result or error."""
        if self.started_at is None:
            self.error = TooLate()
            return
        started = self.started_at
        try:
            self.result = self._context.run(self._fn, **self._kwargs)
        except BaseException as error:  # SystemExit of a handler fails its attempt and does not end the thread
            self.error = error
        self.ran_us = int((now() - started) * 1e6)

    def deliver(self) -> None:
        """On the loop: call ``on_done``, exactly once."""
        # The error's traceback refers to this job: a cycle that only the garbage collector would break.
        error, self.error = self.error, None
        self._on_done(error, self.result, self.ran_us)


class TooLate(Exception):
    """The authority to start the job had ended when a thread came to it."""


class UnfinishedJobs(NamedTuple):
    """Jobs that ``close`` left; ``on_done`` is never called for them."""

    waiting: list[ThreadJob]
    """Never started."""
    running: list[ThreadJob]
    """Still in a thread at the end of the time limit (without jobs quarantined earlier)."""


class ThreadPool:
    """A pool of daemon threads that run plain functions.

    Call the methods on the loop's thread. Threads start when they are first needed.

    Args:
        size: jobs that run at once.
        now: seconds on a clock that only goes forward (``Clock.boottime``).
    """

    def __init__(self, size: int, now: Callable[[], float]) -> None:
        if size < 1:
            raise ValueError(f"a thread pool needs at least one thread, not {size}")
        self._loop = asyncio.get_running_loop()
        self._size = size
        self._now = now
        self._lock = threading.Lock()
        # The lock guards all attributes below except `_done` and `_delivery_scheduled`: see `_finish`.
        self._jobs: deque[ThreadJob] = deque()
        self._running: set[ThreadJob] = set()
        self._idle: list[threading.Lock] = []
        """One locked lock per sleeping thread; its release wakes that thread. Last in, first out: warm caches."""
        self._waking = False
        self._live = 0
        """Threads that take jobs, without quarantined ones."""
        self._stuck = 0
        self._closed = False
        self._done: deque[ThreadJob] = deque()
        self._delivery_scheduled = False
        self._numbers = itertools.count(1)
        self._ended = asyncio.Event()
        self.exhausted = asyncio.Event()
        """Set once ``size`` threads are quarantined at the same time, and never cleared: replace the process."""

    @property
    def quarantined(self) -> int:
        """Number of threads that are quarantined now."""
        return self._stuck

    @property
    def waiting(self) -> int:
        """Number of jobs that no thread has taken yet."""
        return len(self._jobs)

    def submit(
        self,
        fn: Callable[..., object],
        kwargs: Mapping[str, object],
        on_done: OnDone,
        context: contextvars.Context | None = None,
        start_before: float = inf,
    ) -> ThreadJob:
        """Run ``fn(**kwargs)`` in a thread; ``on_done`` is called on the loop when it has returned or raised.

        Args:
            context: context variables of the call, for this call alone; default: a copy of the caller's.
            start_before: when the authority to start it ends (``ThreadJob.start_before``).

        Raises:
            Unavailable: there is no thread and none could be started; the job was not accepted.
        """
        job = ThreadJob(fn, kwargs, on_done, contextvars.copy_context() if context is None else context)
        job.start_before = start_before
        with self._lock:
            if self._closed:
                raise Unavailable("the thread pool is closed", hint="hand the job back")
            self._jobs.append(job)
            start = self._ensure_thread()
        if start and not self._start_thread():
            self._refuse_without_threads(job)
        return job

    def quarantine(self, job: ThreadJob) -> bool:
        """Stop waiting for a job (timed out, superseded). Its ``on_done`` is never called from now on.

        Returns: False when it had ended already: then ``on_done`` was called or is about to be. Else True: a job that no
        thread had taken will not start, and the thread of a running job is replaced.
        """
        with self._lock:
            if job.over or job.quarantined:
                return False
            job.quarantined = True
            if job.started_at is None:
                self._leave_queue(job)
                return True
            self._running.discard(job)
            self._stuck += 1
            self._live -= 1
            if self._stuck >= self._size:
                self.exhausted.set()
            if self._closed and not self._live:
                self._ended.set()
            start = bool(self._jobs) and self._ensure_thread()
        if start:
            self._start_thread()
        return True

    def withdraw(self, job: ThreadJob) -> bool:
        """Take back a job that no thread has taken; its ``on_done`` is never called then. False: a thread has or had it."""
        with self._lock:
            if job.started_at is not None or job.over or job.quarantined or job in self._running:
                return False
            job.quarantined = True
            self._leave_queue(job)
            return True

    def _leave_queue(self, job: ThreadJob) -> None:
        """Under the lock: no thread has begun the job. One whose authority had ended may be on its way out of a thread."""
        if not self._closed and job not in self._running:
            self._jobs.remove(job)

    async def close(self, timeout_seconds: float) -> UnfinishedJobs:
        """Accept no more jobs, await running jobs, end the threads. Waiting jobs are returned."""
        with self._lock:
            self._closed = True
            waiting = list(self._jobs)
            self._jobs.clear()
            for wake in self._idle:
                wake.release()
            self._idle.clear()
            if not self._live:
                self._ended.set()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._ended.wait()
        except TimeoutError:
            pass
        self._deliver()
        with self._lock:
            running = [job for job in self._running if job.started_at is not None]
            waiting += [job for job in self._running if job.started_at is None]  # too late, and not delivered
            for job in self._running:
                job.quarantined = True
            self._running.clear()
            self._stuck += len(running)
            self._live -= len(running)
        return UnfinishedJobs(waiting, running)

    # ------------------------------------------------------------ threads

    def _ensure_thread(self) -> bool:
        """Under the lock: make sure that a thread is on its way to the queue. True: the caller must start one.

        One at a time: each thread wakes or starts the next when it takes a job and finds more.
        """
        if self._waking:
            return False
        if self._idle:
            self._waking = True
            self._idle.pop().release()
            return False
        # Never more than twice the size in all: a lane full of stuck jobs cannot exhaust the machine.
        self._waking = self._live < self._size and self._live + self._stuck < 2 * self._size
        if self._waking:
            self._live += 1
        return self._waking

    def _start_thread(self) -> bool:
        """Start the thread that ``_ensure_thread`` has counted already."""
        name = f"jobmaster-thread-{next(self._numbers)}"
        try:
            threading.Thread(target=self._work, name=name, daemon=True).start()
        except RuntimeError:  # the process may have no more threads: the existing ones do the work
            with self._lock:
                self._waking = False
                self._live -= 1
            return False
        return True

    def _refuse_without_threads(self, job: ThreadJob) -> None:
        with self._lock:
            if self._live or job.started_at is not None:
                return
            job.quarantined = True
            self._leave_queue(job)
        raise Unavailable("cannot start a thread for a job", hint="raise the limit on processes (ulimit -u)")

    def _work(self) -> None:
        wake = threading.Lock()
        wake.acquire()
        with self._lock:
            self._waking = False
        while (job := self._take(wake)) is not None:
            job.run(self._now)
            if not self._finish(job):
                return
            del job  # or the thread would keep its arguments and result alive while it sleeps
        self._leave()

    def _take(self, wake: threading.Lock) -> ThreadJob | None:
        """The next job for this thread; sleeps until there is one. ``None``: the pool is closed."""
        while True:
            with self._lock:
                if (job := self._next()) is not None:
                    start = bool(self._jobs) and self._ensure_thread()
                    break
                if self._closed:
                    return None
                self._idle.append(wake)
            wake.acquire()
            with self._lock:
                self._waking = False
        if start:
            self._start_thread()
        return job

    def _next(self) -> ThreadJob | None:
        if not self._jobs:
            return None
        job = self._jobs.popleft()
        now = self._now()
        if now < job.start_before:
            job.started_at = now
        self._running.add(job)
        return job

    def _finish(self, job: ThreadJob) -> bool:
        """Hand a finished job to the loop. False: it was quarantined, so this thread has been replaced and ends."""
        with self._lock:
            if job.quarantined:
                if job.started_at is None:  # too late, and then stopped: this thread was not replaced
                    self._running.discard(job)
                    return True
                self._stuck -= 1
                return False
            job.over = True
            self._running.discard(job)
        # Append first, schedule second; the loop clears the flag first and empties second: no job stays behind.
        self._done.append(job)
        if not self._delivery_scheduled:
            self._delivery_scheduled = True
            self._call_loop(self._deliver)
        return True

    def _leave(self) -> None:
        with self._lock:
            self._live -= 1
            last = self._live == 0
        if last:
            self._call_loop(self._ended.set)

    def _call_loop(self, callback: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            pass  # the loop is closed: the process ends

    def _deliver(self) -> None:
        self._delivery_scheduled = False
        done = self._done
        for _ in range(len(done)):  # later jobs schedule another delivery, so that the loop gets its turn
            job = done.popleft()
            try:
                job.deliver()
            except Exception as error:  # an error of one caller must not lose the results of the others
                self._loop.call_exception_handler(
                    {"message": "on_done of a job that ran in a thread raised", "exception": error}
                )
