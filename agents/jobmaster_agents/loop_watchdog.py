"""Logs the handler that blocks the event loop. It runs in a thread of its own and costs nothing on the hot path.

When the loop has not turned for a while, the thread reads the stack of the main thread and searches it for the frame in which
a slot runs a job; its locals name the job. If the loop stays blocked, the lease is not renewed, it runs out, and the
supervisor replaces the process; the other jobs run again without having used up an attempt.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from types import FrameType

from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.execute.executor import Executor
from jobmaster_agents.state.job_table import ClaimedJob
from jobmaster_agents.state.time_limits import trace_fields_of

_LOOK_SECONDS = 1.0


class LoopWatchdog:
    """Watches one loop from a daemon thread. Create and start it on the loop's own thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, log: EventLog, blocked_seconds: float) -> None:
        self._loop = loop
        self._log = log
        self._blocked_seconds = blocked_seconds
        self._main_thread = threading.get_ident()
        self._turned = threading.Event()
        self._end = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._watch, name="jobmaster-watchdog", daemon=True).start()

    def stop(self) -> None:
        """End the thread."""
        self._end.set()

    def _watch(self) -> None:
        while not self._end.wait(_LOOK_SECONDS):
            self._turned.clear()
            try:
                self._loop.call_soon_threadsafe(self._turned.set)
            except RuntimeError:
                return  # the loop is closed
            if not self._turned.wait(self._blocked_seconds) and not self._end.is_set():
                self._log_stall()
                self._turned.wait()  # one line per stall

    def _log_stall(self) -> None:
        fields: dict[str, object] = {"seconds": self._blocked_seconds}
        frame = sys._current_frames().get(self._main_thread)
        if frame is not None:
            fields["at"] = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        job = running_job(frame)
        if job is not None:
            fields |= {"handler": job.entry.handler, "job": job.entry.id, **trace_fields_of(job.entry.headers)}
        self._log.error(Event.LOOP_STALLED, fields)


def running_job(frame: FrameType | None) -> ClaimedJob | None:
    """The job that the given stack runs, by the frame of its slot; ``None``: no job."""
    code = Executor._run.__code__
    while frame is not None:
        if frame.f_code is code:
            job = frame.f_locals.get("job")
            return job if isinstance(job, ClaimedJob) else None
        frame = frame.f_back
    return None
