"""Sends what the running handler reports (``ctx.progress``, ``ctx.log``, ``logging``) to the agent, at most twice a second.

The handler only leaves its report here: a signal that stops it may raise in any line of it, and half a frame on the socket
would end the worker.
"""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from jobmaster.model.job_log import LogLine
from jobmaster.model.run_progress import RunProgress
from jobmaster_agents.execute.process_pool.protocol import Logged, Progressed

EVERY_SECONDS = 0.5
FRAME_BYTES = 32 * 1024
"""Lines of one frame, without the last one: a frame must stay below what the agent accepts."""
_LINE_BYTES = 100
"""What a line takes beside its text, at most."""


class _Reporter(ABC):
    """A thread that sends soon after ``_wake_up``, and then waits for ``EVERY_SECONDS``."""

    def __init__(self, name: str) -> None:
        self.number = 0
        """Number of the job that runs."""
        self._woken = False
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start its thread, which waits until a handler reports."""
        self._thread.start()

    @abstractmethod
    def flush(self) -> None:
        """Send what was not sent yet."""

    def _wake_up(self) -> None:
        if not self._woken:
            self._woken = True
            self._wake.put(None)

    def _run(self) -> None:
        while True:
            self._wake.get()
            self._woken = False
            self.flush()
            threading.Event().wait(EVERY_SECONDS)


class ProgressReporter(_Reporter):
    """``jobmaster.handlers.context.ProgressSink`` of a worker process.

    Args:
        send: sends a message to the agent; may be called on any thread.
    """

    def __init__(self, send: Callable[[Progressed], None]) -> None:
        super().__init__("jobmaster-progress")
        self._send = send
        self._latest: Progressed | None = None
        self._lock = threading.Lock()

    def note(self, job_id: bytes, token: int, progress: RunProgress) -> None:
        """Take over a report."""
        self._latest = Progressed(self.number, progress)
        self._wake_up()

    def flush(self) -> None:
        """Send the last report, if it was not sent yet."""
        with self._lock:
            latest, self._latest = self._latest, None
            if latest is not None:
                self._send(latest)


class LogReporter(_Reporter):
    """``jobmaster.handlers.run_log.LogSink`` of a worker process.

    Args:
        send: sends a message to the agent; may be called on any thread.
    """

    def __init__(self, send: Callable[[Logged], None]) -> None:
        super().__init__("jobmaster-log")
        self._send = send
        self.job_id = b""
        """Id of the job that runs: a thread that an earlier job has left may still write lines."""
        self._lines: deque[LogLine] = deque()
        self._lowest = 1
        self._lock = threading.Lock()
        self._sending = threading.Lock()

    def keep(self, job_id: bytes, line: LogLine, lowest: int) -> None:
        """Take over a line."""
        if job_id != self.job_id:
            return
        with self._lock:
            self._lines.append(line)
            self._lowest = lowest
            while self._lines[0].number < lowest:
                self._lines.popleft()
        self._wake_up()

    def flush(self) -> None:
        """Send the lines that were not sent yet."""
        with self._sending:  # in order, whichever thread sends
            while (lines := self._take()) is not None:
                self._send(lines)

    def _take(self) -> Logged | None:
        taken: list[LogLine] = []
        size = 0
        with self._lock:
            while self._lines and size < FRAME_BYTES:
                line = self._lines.popleft()
                size += len(line.text.encode()) + _LINE_BYTES
                taken.append(line)
            return Logged(self.number, taken, self._lowest) if taken else None
