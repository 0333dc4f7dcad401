"""Cleans up a worker process after a job, or finds that the process must be replaced.

Restored: working directory, umask, environment, signal handlers and mask, timers, ``sys.stdout``/``stderr``, finished
children. Cause for replacement: threads that are not daemons, living children, too much memory. Not detected: daemon
threads, which end with the worker, and grandchildren with a session of their own.
"""

from __future__ import annotations

import array
import fcntl
import os
import signal
import sys
import termios
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from jobmaster.clock import SystemClock
from jobmaster_agents.execute.process_pool.worker_output import OutputReads

_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_SIGNALS = sorted(s for s in signal.valid_signals() if s < 32 and s not in (signal.SIGKILL, signal.SIGSTOP))
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_LOOK_AT_SIZE_SECONDS = 0.005


class ProcessState:
    """The state of the process at the start of every job; recorded when the worker is ready for its first job.

    Args:
        output_reads: how often the agent has read the output of this process.
    """

    def __init__(self, output_reads: OutputReads) -> None:
        self._output_reads = output_reads
        self._reads_before = output_reads.count
        self._output_fd = os.dup(1)  # a handler may put another file in the place of its standard output
        os.set_inheritable(self._output_fd, False)
        self._unread = array.array("i", [0])
        self._directory = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
        self._umask = _read_umask()
        self._resident_bytes = 0
        """After the first job."""
        self._look_at_size_at = 0.0
        self._environ = os.environ
        self._environment = dict(os.environ)
        self._encoded_environment = _encoded(os.environ).copy()
        self._handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._streams = (sys.stdout, sys.stderr)
        self._threads = frozenset(threading.enumerate())
        # Children that the handlers' modules started on import belong to the worker, and look like those of a job.
        self._watch_children = not _living_children()

    def restore(self) -> None:
        """Restore the state that a job may have changed."""
        for timer in _TIMERS:
            signal.setitimer(timer, 0)
        for number, handler in self._handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        os.fchdir(self._directory)
        os.umask(self._umask)
        os.environ = self._environ  # noqa: B003 - a job may have put another mapping in its place
        # A comparison of the encoded variables: one of the mapping would decode each of them, 60 us after every job.
        if _encoded(self._environ) != self._encoded_environment:
            os.environ.clear()
            os.environ.update(self._environment)
        if sys.stdout is not self._streams[0] or sys.stderr is not self._streams[1]:
            sys.stdout, sys.stderr = self._streams

    def has_printed(self) -> bool:
        """True when the job that ends now may have written output: there is some that the agent has not read, or the agent
        has read some since ``mark_output``."""
        # In this order: what is not in the pipe any more was counted before it was read.
        try:
            fcntl.ioctl(self._output_fd, termios.FIONREAD, self._unread)
        except OSError:  # the job has closed it
            return True
        return bool(self._unread[0]) or self._output_reads.count != self._reads_before

    def mark_output(self) -> None:
        """The next job may begin."""
        self._reads_before = self._output_reads.count

    def why_unusable(self, ours: Callable[[threading.Thread], bool], growth_bytes: int) -> str:
        """Why the process must not run another job; empty when it may.

        Args:
            ours: true for threads that belong to the worker itself.
            growth_bytes: growth of the resident size since the first job that is too much; 0 = no limit. (The first job may
                load what all others need.)
        """
        threads = [
            thread.name
            for thread in threading.enumerate()
            if not thread.daemon and thread not in self._threads and not ours(thread)
        ]
        if threads:
            return f"the job left {len(threads)} thread(s) behind: {', '.join(threads[:5])}"
        if self._watch_children and _living_children():
            return "the job left child processes behind"
        if growth_bytes and (grown := self._grown_bytes()) > growth_bytes:
            return f"the worker has grown by {grown} bytes since its first job, the limit is {growth_bytes}"
        return ""

    def _grown_bytes(self) -> int:
        now = SystemClock.boottime()
        if now < self._look_at_size_at:
            return 0  # 15 us; between two looks a job cannot grow by much
        self._look_at_size_at = now + _LOOK_AT_SIZE_SECONDS
        resident = _resident_bytes()
        if not self._resident_bytes:
            self._resident_bytes = resident
        return resident - self._resident_bytes


class CountingExecutor(ThreadPoolExecutor):
    """Default executor of the loop; it knows whether any of its work is unfinished. Its threads stay from job to job, work
    of a job must not."""

    PREFIX = "jobmaster-loop-helper"

    def __init__(self) -> None:
        super().__init__(thread_name_prefix=self.PREFIX)
        self._unfinished: set[Future[Any]] = set()

    @property
    def busy(self) -> bool:
        """True while some work has not ended."""
        return bool(self._unfinished)

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See ``ThreadPoolExecutor.submit``."""
        future: Future[Any] = super().submit(fn, *args, **kwargs)
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        return future


def _encoded(environment: Any) -> dict[bytes, bytes]:
    """The variables as ``os.environ`` keeps them."""
    kept = getattr(environment, "_data", None)
    return kept if isinstance(kept, dict) else dict(os.environb)


def _read_umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def _living_children() -> bool:
    """True while a child runs. Ended children are reaped."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0  # only Linux has the present size; on other systems there is no such limit
