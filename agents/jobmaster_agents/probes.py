"""What the probes of an agent process answer, and why: started, ready, leaving. And the reasons for which it ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping

from jobmaster.clock import Clock
from jobmaster.handlers.lifespan import OpenLifespans
from jobmaster.model.errors import Unavailable
from jobmaster.model.job import Priority
from jobmaster.rules.lease import LeaseStatus
from jobmaster_agents.agent import AgentRuntime

LIFESPAN_ENDED = "a lifespan of the handlers has ended before its time"
THREADS_STUCK = "every thread is stuck in a handler that was given up"


class AgentLifecycle:
    """State of the process for its probes, and the reasons to end: signals, supervisor's pipe, operator, lease."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.boottime
        self.leave = asyncio.Event()
        self.hurry = asyncio.Event()
        self.orphaned = asyncio.Event()
        self.reason = ""
        self.waits_for = ""
        """Error of the server that the start waits for; empty when there is none."""
        self.waits_for_once = ""
        """What the start does about a start-up action that has not been done; empty when there is none."""
        self.lifespans: OpenLifespans | None = None
        """Set when the start has come to them."""
        self.serving: AgentRuntime | None = None
        """Set when the buckets are open."""
        self.exit_deadline: float | None = None
        """CLOCK_BOOTTIME seconds at which the grace time of the exit ends; ``None`` before the exit begins."""

    def why_not_started(self) -> str | None:
        """Reason of the startup probe; ``None`` from the first opening of the buckets on."""
        return self._starting() if self.serving is None else None

    def _starting(self) -> str:
        if self.waits_for:
            return f"it waits for a server: {self.waits_for}"
        if self.waits_for_once:
            return self.waits_for_once
        if self.lifespans is not None and (place := self.lifespans.waits_at) is not None:
            return f"it starts the lifespan {place}"
        return "it is starting"

    def draining(self) -> dict[str, object]:
        """Work that is left, and the seconds until running jobs are given back."""
        left = None if self.exit_deadline is None else round(max(self.exit_deadline - self._now(), 0.0), 1)
        bucket_worker = self.serving.bucket_worker if self.serving is not None else None
        return {
            "draining": self.exit_deadline is not None or self.leave.is_set(),
            "in_flight": 0 if bucket_worker is None else len(bucket_worker.job_table),
            "running": 0 if bucket_worker is None else bucket_worker.executor.running,
            "outcomes_waiting": 0 if bucket_worker is None else bucket_worker.outcome_writer.backlog,
            "buckets": 0 if self.serving is None else len(self.serving.ownership.buckets),
            "seconds_left": left,
        }

    async def scale(self, lane: str | None, priority: Priority | None) -> Mapping[str, object]:
        """Figures of the cluster for an autoscaler.

        Raises:
            Unavailable: the agent is starting, or the master does not answer.
        """
        if self.serving is None:
            raise Unavailable(self._starting())
        return await self.serving.backlog.scale(lane, priority)

    def why_not_ready(self) -> str | None:
        """Reason of the readiness probe; ``None`` when the agent takes work. It reads the flags that the exit waits for,
        so the probe fails before any bucket is closed to new jobs."""
        if self.orphaned.is_set():
            return "its supervisor died"
        if self.leave.is_set():
            return f"it is leaving: {self.reason}"
        if self.serving is None:
            return self._starting()
        if self.serving.stop_requested.is_set():
            return "it is leaving: drain requested"
        if self.serving.bucket_worker.threads_exhausted.is_set():
            return f"it is leaving: {THREADS_STUCK}"
        if self.lifespans is not None and self.lifespans.ended.is_set():
            return f"it is leaving: {LIFESPAN_ENDED}"
        ownership = self.serving.ownership
        if ownership.fenced.is_set():
            return f"it is fenced: {ownership.fenced_why}"
        if ownership.lease_status(self._now()) not in (LeaseStatus.TRUSTED, LeaseStatus.SUSPENDED):
            return "its lease has not been renewed in time: it starts nothing"
        return None

    @property
    def seconds_left(self) -> float:
        """Rest of the grace time of the exit."""
        return 0.0 if self.exit_deadline is None else max(self.exit_deadline - self._now(), 0.0)

    def begin_exit(self, grace_seconds: float) -> None:
        """Note that the exit begins now."""
        self.exit_deadline = self._now() + grace_seconds

    def remark(self) -> str | None:
        """Remark of the readiness probe while the agent is suspended: it takes work, but not as usual."""
        if self.serving is None or (seconds := self.serving.store_lease.suspended_seconds) is None:
            return None
        kept = sum(owned.kept for owned in self.serving.ownership.buckets.values())
        why = "the master does not answer, work goes on from the store"
        return f"suspended for {seconds:.0f} s: {why} ({kept} outcomes kept)"

    def on_signal(self, signum: int) -> None:
        """First signal: graceful exit. Second signal: give everything back now."""
        if self.leave.is_set():
            self.hurry.set()
        self.reason = self.reason or signal.Signals(signum).name
        self.leave.set()
