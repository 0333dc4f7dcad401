"""One agent on paper: when jobs start, given buckets with slots, a limit of jobs at once, and the processor time of a start.

Pure. Times are whole microseconds. A job waits in the queue of its bucket, in order of arrival. The agent starts the most
urgent job that has a free slot, and of equally urgent ones the oldest. Jobs that have waited long are not raised
(`thresholds.age_boost`), and no job is interrupted.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Queue(NamedTuple):
    """One bucket of the agent."""

    urgency: int
    """The more, the earlier."""
    slots: int


class Limits(NamedTuple):
    """What bounds an agent beside the slots of its buckets."""

    at_once: int | None = None
    """Jobs of all buckets that run at once; ``None``: as many as there are slots."""
    start_us: int = 0
    """Processor time of one start: starts follow one another at least that far apart."""


NO_LIMITS = Limits()


def waits_of_agent(
    ready_us: Sequence[int],
    service_us: Sequence[int],
    queue_of: Sequence[int],
    queues: Sequence[Queue],
    limits: Limits = NO_LIMITS,
) -> list[int]:
    """Waits, in the order of arrival.

    Args:
        ready_us: ascending.
        service_us: how long each job runs.
        queue_of: the queue of each job, as an index of ``queues``.
    """
    shared = limits.at_once is not None and limits.at_once < sum(queue.slots for queue in queues)
    if shared or limits.start_us:
        return _Agent(ready_us, service_us, queue_of, queues, limits).waits()
    jobs_of: list[list[int]] = [[] for _ in queues]
    for job, number in enumerate(queue_of):
        jobs_of[number].append(job)
    found = [0] * len(ready_us)
    for queue, jobs in zip(queues, jobs_of, strict=True):
        waits = kiefer_wolfowitz((ready_us[job] for job in jobs), (service_us[job] for job in jobs), queue.slots)
        for job, wait in zip(jobs, waits, strict=True):
            found[job] = wait
    return found


def kiefer_wolfowitz(ready_us: Iterable[int], service_us: Iterable[int], servers: int) -> list[int]:
    """Waits in one queue with several servers, in order of arrival (``ready_us`` ascending)."""
    free = [0] * servers
    found = []
    for ready, service in zip(ready_us, service_us, strict=True):
        start = max(ready, free[0])
        heapq.heapreplace(free, start + service)
        found.append(start - ready)
    return found


class _Agent:
    """Events in order of time: arrivals, ends of jobs, and the moment at which the processor is free for another start."""

    def __init__(
        self,
        ready_us: Sequence[int],
        service_us: Sequence[int],
        queue_of: Sequence[int],
        queues: Sequence[Queue],
        limits: Limits,
    ) -> None:
        self._ready = ready_us
        self._service = service_us
        self._queue_of = queue_of
        self._queues = queues
        self._at_once = limits.at_once or sum(queue.slots for queue in queues)
        self._start_us = limits.start_us
        self._waiting: list[deque[int]] = [deque() for _ in queues]
        self._running = [0] * len(queues)
        self._all_running = 0
        self._started = 0
        self._offered = [False] * len(queues)
        self._offers: list[tuple[int, int, int]] = []
        """Queues whose first job could start: ``(-urgency, job, queue)``; jobs are numbered in order of arrival."""
        self._ends: list[tuple[int, int]] = []
        self._free_us = 0
        self._waits = [0] * len(ready_us)

    def waits(self) -> list[int]:
        arrived, count = 0, len(self._ready)
        while self._started < count:
            now = self._next_event(arrived)
            while self._ends and self._ends[0][0] <= now:
                _, queue = heapq.heappop(self._ends)
                self._running[queue] -= 1
                self._all_running -= 1
                self._offer(queue)
            while arrived < count and self._ready[arrived] <= now:
                queue = self._queue_of[arrived]
                self._waiting[queue].append(arrived)
                self._offer(queue)
                arrived += 1
            self._start(now)
        return self._waits

    def _next_event(self, arrived: int) -> int:
        moments = []
        if arrived < len(self._ready):
            moments.append(self._ready[arrived])
        if self._ends:
            moments.append(self._ends[0][0])
        if self._offers and self._all_running < self._at_once:
            moments.append(self._free_us)
        return min(moments)

    def _offer(self, queue: int) -> None:
        if self._waiting[queue] and not self._offered[queue] and self._running[queue] < self._queues[queue].slots:
            self._offered[queue] = True
            heapq.heappush(self._offers, (-self._queues[queue].urgency, self._waiting[queue][0], queue))

    def _start(self, now: int) -> None:
        while self._offers and self._all_running < self._at_once and self._free_us <= now:
            _, job, queue = heapq.heappop(self._offers)
            self._offered[queue] = False
            self._waiting[queue].popleft()
            self._running[queue] += 1
            self._all_running += 1
            self._started += 1
            self._waits[job] = now - self._ready[job]
            heapq.heappush(self._ends, (now + self._service[job], queue))
            if self._start_us:
                self._free_us = now + self._start_us
            self._offer(queue)
