"""Sends the reports of the running handler (``ctx.progress``) to the agent, at most two a second.

The handler only leaves its report here: a signal that stops it may raise in any line of it, and half a frame on the socket
would end the worker.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from jobmaster.model.run_progress import RunProgress
from jobmaster_agents.execute.process_pool.protocol import Progressed

EVERY_SECONDS = 0.5


class ProgressReporter:
    """``jobmaster.handlers.context.ProgressSink`` of a worker process.

    Args:
        send: sends a message to the agent; may be called on any thread.
    """

    def __init__(self, send: Callable[[Progressed], None]) -> None:
        self._send = send
        self.number = 0
        """Number of the job that runs."""
        self._latest: Progressed | None = None
        self._lock = threading.Lock()
        self._woken = False
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="jobmaster-progress", daemon=True)

    def start(self) -> None:
        """Start its thread, which waits until a handler reports."""
        self._thread.start()

    def note(self, job_id: bytes, token: int, progress: RunProgress) -> None:
        """Take over a report."""
        self._latest = Progressed(self.number, progress)
        if not self._woken:
            self._woken = True
            self._wake.put(None)

    def flush(self) -> None:
        """Send the last report, if it was not sent yet."""
        with self._lock:
            latest, self._latest = self._latest, None
            if latest is not None:
                self._send(latest)

    def _run(self) -> None:
        while True:
            self._wake.get()
            self._woken = False
            self.flush()
            threading.Event().wait(EVERY_SECONDS)
