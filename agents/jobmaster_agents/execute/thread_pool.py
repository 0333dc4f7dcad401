"""Plain functions in threads, with a hand-over that is paid by the batch.

``loop.run_in_executor`` costs a future pair, a work item and a loop wake-up per job. Here jobs go through one deque, an
idle thread is woken only when none is on its way (a woken thread wakes the next before it runs its job, so blocking jobs
spread over all threads and jobs of no length stay on one), and finished jobs come back in batches: one loop wake-up
brings all that ended until the loop turned.

A thread cannot be killed. One whose job is given up is *quarantined*: its late result is thrown away, another thread
takes its place, and it ends when its job does. With as many threads stuck as the pool is large, ``exhausted`` is set:
the process should be replaced.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from jobmaster.model.errors import Unavailable

OnDone = Callable[[BaseException | None, object, int], None]
"""Called on the loop with (error or ``None``, result, microseconds the job ran)."""


class ThreadJob:
    """One submitted call: the handle for ``quarantine``."""

    __slots__ = ("_fn", "_kwargs", "_on_done", "error", "over", "quarantined", "ran_us", "result", "started_at")

    def __init__(self, fn: Callable[..., object], kwargs: Mapping[str, object], on_done: OnDone) -> None:
        self._fn = fn
        self._kwargs = kwargs
        self._on_done = on_done
        self.started_at: float | None = None
        """When a thread took it up, by the runner's clock; ``None`` while it waits for a thread."""
        self.over = False
        self.quarantined = False
        self.error: BaseException | None = None
        self.result: object = None
        self.ran_us = 0

    def run(self, now: Callable[[], float]) -> None:
        """In the thread: call the function in a context of its own and keep how it ended."""
        started = self.started_at or now()
        try:
            # A fresh context, so that no context variable leaks from one job into the next.
            self.result = contextvars.Context().run(self._fn, **self._kwargs)
        except BaseException as error:  # SystemExit of a handler is its failed attempt, not the end of the thread
            self.error = error
        self.ran_us = int((now() - started) * 1e6)

    def deliver(self) -> None:
        """On the loop: tell the caller, exactly once."""
        # The error's traceback refers to this job: a circle that only the collector would break.
        error, self.error = self.error, None
        self._on_done(error, self.result, self.ran_us)


class Unfinished(NamedTuple):
    """What ``close`` left behind; ``on_done`` is never called for any of these."""

    waiting: list[ThreadJob]
    """Never started."""
    running: list[ThreadJob]
    """Still in a thread when the time was over (jobs given up earlier are not among them)."""


class ThreadPool:
    """A pool of daemon threads that run plain functions.

    All methods are for the loop's thread. Threads start when they are first needed.

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
        # All below is guarded by the lock, but `_done` and `_asked`: see `_finish`.
        self._jobs: deque[ThreadJob] = deque()
        self._running: set[ThreadJob] = set()
        self._idle: list[threading.Lock] = []
        """One locked lock per sleeping thread; releasing it wakes that thread. Last in, first out: the warm one."""
        self._waking = False
        self._live = 0
        """Threads that take jobs: quarantined ones are not counted."""
        self._stuck = 0
        self._closed = False
        self._done: deque[ThreadJob] = deque()
        self._asked = False
        self._numbers = itertools.count(1)
        self._ended = asyncio.Event()
        self.exhausted = asyncio.Event()
        """Set, for good, when ``size`` threads were stuck at once: replace the process."""

    @property
    def quarantined(self) -> int:
        """Threads stuck right now in a job that was given up."""
        return self._stuck

    @property
    def waiting(self) -> int:
        """Jobs that no thread has taken up yet."""
        return len(self._jobs)

    def submit(self, fn: Callable[..., object], kwargs: Mapping[str, object], on_done: OnDone) -> ThreadJob:
        """Run ``fn(**kwargs)`` in a thread; ``on_done`` is called on the loop when it has ended, however it did.

        Raises:
            Unavailable: no thread could be started and none is there; the job was not taken.
        """
        job = ThreadJob(fn, kwargs, on_done)
        with self._lock:
            if self._closed:
                raise Unavailable("the thread pool is closed", hint="hand the job back")
            self._jobs.append(job)
            start = self._call_help()
        if start and not self._start_thread():
            self._refuse_alone(job)
        return job

    def quarantine(self, job: ThreadJob) -> bool:
        """Give a job up (timed out, superseded). From here on its ``on_done`` is never called.

        Returns: False when it had ended already: then ``on_done`` was called or is about to be. Else True; a job that
        no thread had taken up will not be started, the thread of a running one is replaced.
        """
        with self._lock:
            if job.over or job.quarantined:
                return False
            job.quarantined = True
            if job.started_at is None:
                return True  # the thread that finds it in the queue passes over it
            self._running.discard(job)
            self._stuck += 1
            self._live -= 1
            if self._stuck >= self._size:
                self.exhausted.set()
            if self._closed and not self._live:
                self._ended.set()
            start = bool(self._jobs) and self._call_help()
        if start:
            self._start_thread()
        return True

    async def close(self, timeout_seconds: float) -> Unfinished:
        """Take no more jobs, wait for what runs, end the threads. What waits is given back at once."""
        with self._lock:
            self._closed = True
            waiting = [job for job in self._jobs if not job.quarantined]
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
            running = list(self._running)
            for job in running:
                job.quarantined = True
            self._running.clear()
            self._stuck += len(running)
            self._live -= len(running)
        return Unfinished(waiting, running)

    # ------------------------------------------------------------ threads

    def _call_help(self) -> bool:
        """Under the lock: see that a thread is on its way to the queue. True: the caller must start one.

        One at a time: each wakes or starts the next when it takes up a job and finds more.
        """
        if self._waking:
            return False
        if self._idle:
            self._waking = True
            self._idle.pop().release()
            return False
        # Never more than twice the size in all, so that a lane full of stuck jobs cannot eat the machine.
        self._waking = self._live < self._size and self._live + self._stuck < 2 * self._size
        if self._waking:
            self._live += 1
        return self._waking

    def _start_thread(self) -> bool:
        """Start the thread that ``_call_help`` has counted already."""
        name = f"jobmaster-thread-{next(self._numbers)}"
        try:
            threading.Thread(target=self._work, name=name, daemon=True).start()
        except RuntimeError:  # this process may have no more: the threads that there are go on with the work
            with self._lock:
                self._waking = False
                self._live -= 1
            return False
        return True

    def _refuse_alone(self, job: ThreadJob) -> None:
        with self._lock:
            if self._live or job.started_at is not None:
                return
            job.quarantined = True
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
        """Next job for this thread; sleeps until there is one. ``None``: the pool is closed."""
        while True:
            with self._lock:
                if (job := self._next()) is not None:
                    start = bool(self._jobs) and self._call_help()
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
        while self._jobs:
            job = self._jobs.popleft()
            if not job.quarantined:
                job.started_at = self._now()
                self._running.add(job)
                return job
        return None

    def _finish(self, job: ThreadJob) -> bool:
        """Hand a finished job to the loop. False: it was given up, so this thread has been replaced and ends."""
        with self._lock:
            if job.quarantined:
                self._stuck -= 1
                return False
            job.over = True
            self._running.discard(job)
        # Append first, ask second; the loop clears the flag first and empties second: nothing is left lying.
        self._done.append(job)
        if not self._asked:
            self._asked = True
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
            pass  # the loop is closed: the process ends and nobody waits for this

    def _deliver(self) -> None:
        self._asked = False
        done = self._done
        for _ in range(len(done)):  # what comes meanwhile asks again, so that the loop gets its turn
            job = done.popleft()
            try:
                job.deliver()
            except Exception as error:  # one caller's mistake must not keep the others' results
                self._loop.call_exception_handler(
                    {"message": "on_done of a job that ran in a thread raised", "exception": error}
                )
