"""What the process of an agent and its host do, for the row of the agent: published with a renewal, now and then.

The figures of the process are for lists of agents and hosts. A series of them comes from ``/metrics``.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from jobmaster.model.inspection.views import AgentStatistics, HandlerFigures
from jobmaster.model.job import JobState
from jobmaster.telemetry import RunOutcome, Telemetry

PUBLISH_SECONDS = 10.0
"""The least time between two publications."""
HANDLERS_MAX = 10
"""Handlers whose figures are published: the row of an agent stays small."""
_FAILED_RUNS = (RunOutcome.FAILED, RunOutcome.RETRIED, RunOutcome.TIMED_OUT)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_KIB = 1024


class ProcessStatistics:
    """Reads the figures when it is time.

    Args:
        slots: jobs that the agent may run at once, at present.
        proc: the directory of the kernel's figures; a system without it has none of memory and threads of its own.
    """

    def __init__(self, telemetry: Telemetry, slots: Callable[[], int], proc: Path = Path("/proc")) -> None:
        self._telemetry = telemetry
        self._slots = slots
        self._proc = proc
        self._at: float | None = None
        self._processor_seconds = 0.0
        self._ended = self._started = self._failed = 0
        self._runs, self._failed_runs = Counter[str](), Counter[str]()
        self._run_seconds: dict[str, float] = {}

    def due(self, now: float, lag_seconds: float) -> AgentStatistics | None:
        """The figures; ``None``: it is too early.

        Args:
            now: CLOCK_BOOTTIME, seconds.
            lag_seconds: how much later than asked the event loop went on.
        """
        if self._at is not None and now - self._at < PUBLISH_SECONDS:
            return None
        times = os.times()
        processor_seconds = times.user + times.system
        ended = sum(self._telemetry.jobs_ended.values())
        failed, started = self._telemetry.jobs_ended.get(JobState.FAILED.value, 0), self._reading("jobs_started")
        elapsed = now - self._at if self._at is not None else 0.0
        used, done = processor_seconds - self._processor_seconds, ended - self._ended
        begun, wrong = started - self._started, failed - self._failed
        self._at, self._processor_seconds, self._ended = now, processor_seconds, ended
        self._started, self._failed = started, failed
        handlers = self._handlers(elapsed)
        memory = self._numbers("meminfo")
        return AgentStatistics(
            slots=self._slots(),
            running=self._reading("jobs_running"),
            queued=self._reading("jobs_queued"),
            ended_per_second=round(done / elapsed, 3) if elapsed > 0 else 0.0,
            started_per_second=round(begun / elapsed, 3) if elapsed > 0 else 0.0,
            failed_per_second=round(wrong / elapsed, 3) if elapsed > 0 else 0.0,
            handlers=handlers,
            processor=round(used / elapsed, 3) if elapsed > 0 else 0.0,
            memory_bytes=self._resident_bytes(),
            threads=self._threads(),
            loop_lag_seconds=round(lag_seconds, 6),
            host_processors=os.cpu_count() or 0,
            host_load=_load(),
            host_memory_bytes=memory.get("MemTotal", 0) * _KIB,
            host_memory_free_bytes=memory.get("MemAvailable", 0) * _KIB,
        )

    def _handlers(self, elapsed: float) -> tuple[HandlerFigures, ...]:
        """The handlers with most runs since the last publication."""
        runs, failed = Counter[str](), Counter[str]()
        for (handler, outcome), count in self._telemetry.handler_runs.items():
            runs[handler] += count
            failed[handler] += count if outcome in _FAILED_RUNS else 0
        seconds = {handler: each.total for (handler,), each in self._telemetry.handler_run_seconds.items()}
        new, new_failed, took = runs - self._runs, failed - self._failed_runs, self._run_seconds
        self._runs, self._failed_runs, self._run_seconds = runs, failed, seconds
        if elapsed <= 0:
            return ()
        return tuple(
            HandlerFigures(
                handler=handler,
                runs_per_second=round(count / elapsed, 3),
                failed_per_second=round(new_failed[handler] / elapsed, 3),
                run_seconds=round((seconds.get(handler, 0.0) - took.get(handler, 0.0)) / count, 6),
            )
            for handler, count in new.most_common(HANDLERS_MAX)
        )

    def _reading(self, key: str) -> int:
        value = self._telemetry.value(key)
        return int(value) if isinstance(value, int | float) else 0

    def _resident_bytes(self) -> int:
        try:
            return int((self._proc / "self" / "statm").read_text().split()[1]) * _PAGE_BYTES
        except (OSError, ValueError, IndexError):
            return 0

    def _threads(self) -> int:
        return self._numbers("self/status").get("Threads", threading.active_count())

    def _numbers(self, name: str) -> dict[str, int]:
        """Lines ``Name:   17 kB`` of a file of the kernel."""
        try:
            lines = (self._proc / name).read_text().splitlines()
        except OSError:
            return {}
        pairs = (line.partition(":") for line in lines)
        words = ((key, value.split()) for key, _, value in pairs)
        return {key: int(value[0]) for key, value in words if value and value[0].isdigit()}


def _load() -> float:
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:  # the system does not say; a lease must not end for that
        return 0.0
