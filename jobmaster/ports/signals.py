"""Ports of signals: jobs that wait for one, and senders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from jobmaster.model.flow.signal import KeptSignal, OutgoingSignal, SignalStep, WaitingJobs
from jobmaster.model.job import NewJob
from jobmaster.ports.master_answers import Written


class EndedWaits(NamedTuple):
    """Jobs whose signal has not come in time."""

    expired: int
    started: int
    """Of those that run without it."""


class ClientSignals(Protocol):
    """For clients."""

    async def hold_waiting(self, jobs: Sequence[NewJob]) -> Written:
        """WAITING rows with token 1, or HELD ones where a kept signal was there; an id that exists is *refused*."""
        ...

    async def hold_waiting_in(self, connection: Any, jobs: Sequence[NewJob]) -> Written:
        """``hold_waiting`` inside the caller's own transaction on ``connection``."""
        ...

    async def send(self, signal: OutgoingSignal, actor: str) -> SignalStep:
        """A signal, or the next portion of one, to the jobs that wait for its key: WAITING -> HELD, due now."""
        ...

    async def kept(self, key: str | None, limit: int) -> list[KeptSignal]:
        """Signals that are kept for jobs to come, the oldest first."""
        ...

    async def waiting(self, key: str | None, limit: int) -> list[WaitingJobs]:
        """How many jobs wait for each key, the most first."""
        ...


class MaintenanceSignals(Protocol):
    """For the leader."""

    async def expire_waits(self, limit: int) -> EndedWaits:
        """WAITING rows whose signal has not come in time -> EXPIRED, or HELD; number of them."""
        ...

    async def finish_sent(self, age_seconds: float) -> bool:
        """Deliver the next portion of a signal whose sender has not come back; False when there is none."""
        ...

    async def end_kept(self, limit: int) -> int:
        """Signals are not kept longer than was asked; number of them."""
        ...
