"""Jobs that wait for permits, aside: in memory, without a slot, and without questions of their own.

``LimitedStarts`` decides when some of them ask. Here is who they are: those of the highest priority first, of an ordering key
the earliest. So many wait here and no more; a job beyond that goes back to the master, no attempt used, until its turn is
near. Of a limit with keys a part of the places is the most that one key gets, so that the jobs of the others find places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from math import inf

from jobmaster.encryption import NotSealed
from jobmaster.model.errors import InvalidArguments
from jobmaster.model.flow.limit import LimitKey
from jobmaster_agents.execute.bucket_queues import BucketQueue
from jobmaster_agents.outcomes.outcome_builder import OutcomeBuilder
from jobmaster_agents.state.job_table import ClaimedJob, JobPhase
from jobmaster_agents.state.limited_starts import ORDERING, LimitedStarts, may_borrow
from jobmaster_agents.state.ownership import Ownership
from jobmaster_agents.state.permit_loans import soon_seconds

ASIDE_JOBS_MAX = 1000
"""Jobs that may wait for permits in this process."""
KEY_JOBS_MAX = 100
"""Of them those of one key. While so many wait for a limit without keys, no more of their handlers are fetched."""
_AHEAD_SECONDS = 0.5
"""Where all jobs that wait start soon, so much work is claimed: what waits for longer than half of ``persist_within`` gets a
row before its start, and then its outcome is an update."""
_QUEUED = JobPhase.QUEUED


class Aside:
    """The jobs aside of all buckets of the process.

    Args:
        queues: by bucket.
        on_woken: called when some may ask: they are the first in their queues.
    """

    def __init__(
        self,
        queues: Mapping[bytes, BucketQueue],
        limits: LimitedStarts,
        ownership: Ownership,
        outcome_builder: OutcomeBuilder,
        now: Callable[[], float],
        on_woken: Callable[[], None],
    ) -> None:
        self._queues = queues
        self._limits = limits
        self._ownership = ownership
        self._outcome_builder = outcome_builder
        self._now = now
        self._on_woken = on_woken
        limits.wake, limits.wake_borrowers = self.wake, self.wake_borrowers

    def lets_start(self, queue: BucketQueue, job: ClaimedJob, now: float) -> bool:
        """True when a job with limits has borrowed its permits, or may ask the master for them. Otherwise it waits here, or
        has failed because its arguments have no key; it is out of its slot then."""
        try:
            if not self._limits.uses(job):
                return True
        except (InvalidArguments, NotSealed) as error:
            self._outcome_builder.raised(job, error, now, now)
            return False
        # Suspended, it is deferred until the master answers: a loan may be over for the master by then.
        full = self._limits.full_limit(job, may_borrow=may_borrow(job) and not self._ownership.suspended)
        if full is None:
            return True
        job.phase = _QUEUED
        self.put(queue, job, full, asked=self._limits.was_woken(job))
        return False

    def put(self, queue: BucketQueue, job: ClaimedJob, limit: LimitKey, *, asked: bool) -> None:
        """A job waits for a permit; when too many do, it goes back to the master.

        Args:
            asked: it was denied a permit just now, so it is the first of its queue to ask again.
        """
        if not asked and (ahead := self._ahead(limit)):
            sent_away = self._exchanged(job, limit)
            seconds = self._limits.seconds_away(limit, ahead)
            self._outcome_builder.release(sent_away, after_seconds=seconds, now=self._now())
            if sent_away is job:
                return
        queue.aside.add(limit, job, first=asked)
        self._limits.waited_for(limit)

    def start_soon(self, queue: BucketQueue, enough: int | None = None) -> int:
        """Jobs aside that start within ``soon_seconds``, because permits are lent to this agent. They count as if they waited
        in the queue: no more are claimed in their place, and none is sent away.

        Args:
            enough: no more than so many need be counted; the answer is asked for after each job, and there may be many keys.
        """
        starts_soon = self._limits.starts_soon
        found = 0
        for limit, jobs in queue.aside.by_limit():
            found += int(min(len(jobs), starts_soon(limit, jobs[0])))
            if enough is not None and found >= enough:
                break
        return found

    def room(self, queue: BucketQueue) -> float:
        """How many jobs memory is to hold at most; without bound when some of those that wait do not start soon, or that is
        not known: jobs of other handlers, which may be behind them, are to be found then."""
        starts = 0.0
        for limit, jobs in queue.aside.by_limit():
            soon = self._limits.starts_soon(limit, jobs[0])
            if soon < len(jobs):
                return inf
            starts += soon / soon_seconds(limit)
        return max(starts * _AHEAD_SECONDS, 2.0 * queue.slots) if starts else inf

    def could_borrow(self, limit: LimitKey) -> int:
        """Jobs that wait here for a limit and may start with a lent permit, of each bucket as many as it has slots. (A
        heavier one, which may not, would wait for ever if this agent borrowed permits for it; one of a frozen bucket, which
        does not start, would keep them from others.)"""
        return sum(
            sum(1 for _ in islice(filter(may_borrow, queue.aside.of(limit)), queue.slots))
            for queue in self._queues.values()
        )

    def _ahead(self, limit: LimitKey) -> int:
        """Jobs that wait here for the limit when there is no place for one more; else 0."""
        ahead = sum(len(queue.aside.of(limit)) for queue in self._queues.values())
        if ahead < self._limits.loans.starts_soon(limit):
            return 0
        if limit[1] and ahead >= KEY_JOBS_MAX:
            return ahead
        return max(ahead, 1) if sum(len(queue.aside) for queue in self._queues.values()) >= ASIDE_JOBS_MAX else 0

    def _exchanged(self, job: ClaimedJob, limit: LimitKey) -> ClaimedJob:
        """The job that is sent away for this one: of an ordering key the latest, which no other one waits for."""
        if limit[0] == ORDERING:
            of_key = [
                (each, one) for each in self._queues.values() for one in each.aside.of(limit) if one.phase is _QUEUED
            ]
            if of_key and (last := max(of_key, key=_id_of))[1].entry.id > job.entry.id:
                last[0].aside.discard(limit, last[1])
                return last[1]
        return job

    @property
    def full_handlers(self) -> frozenset[str]:
        """Handlers of which so many jobs wait for a permit that no more are to be fetched. Where a limit has keys, jobs of
        other keys may start, and all are fetched."""
        return frozenset(
            job.entry.handler
            for queue in self._queues.values()
            if queue.aside
            for (_, key), jobs in queue.aside.by_limit()
            if not key and len(jobs) >= KEY_JOBS_MAX
            for job in jobs
        )

    # ------------------------------------------------------------ some of them ask

    def hinted(self) -> None:
        """Permits may be free that another agent has freed."""
        self._limits.hinted()

    def wake(self, limit: LimitKey, count: int) -> int:
        """So many jobs of a limit may ask for their permits; how many there were. Those of a frozen bucket do not ask: they
        are queued anew when it goes on."""
        if limit[0] == ORDERING:
            return self._wake_earliest(limit)
        return self._wake(count, lambda queue, most: queue.aside.take(limit, most))

    def wake_borrowers(self, limit: LimitKey, count: int) -> int:
        """So many jobs may start with permits that are lent to this agent; how many there were."""
        return self._wake(count, lambda queue, most: queue.aside.take_borrowers(limit, most))

    def _wake(self, count: int, take: Callable[[BucketQueue, int], list[ClaimedJob]]) -> int:
        woken = 0
        queues = [queue for queue in self._queues.values() if queue.slots and queue.aside]
        if len(queues) > 1:  # this is called for the end of each job with a lent permit
            queues.sort(key=_priority, reverse=True)
        for queue in queues:
            if woken < count and (some := take(queue, count - woken)):
                self._limits.may_ask(some)
                queue.jobs.extendleft(reversed(some))
                woken += len(some)
        if woken:
            self._on_woken()
        return woken

    def _wake_earliest(self, limit: LimitKey) -> int:
        """The earliest job of an ordering key here may ask, whatever its priority: no later one can start before it."""
        found = [
            (queue, job)
            for queue in self._queues.values()
            if queue.slots
            for job in queue.aside.of(limit)
            if job.phase is _QUEUED
        ]
        if not found:
            for queue in self._queues.values():
                if queue.slots:
                    queue.aside.take(limit, 1)  # those that have ended
            return 0
        queue, job = min(found, key=_id_of)
        queue.aside.discard(limit, job)
        queue.jobs.appendleft(job)
        self._limits.may_ask([job])
        self._on_woken()
        return 1


def _priority(queue: BucketQueue) -> int:
    return queue.owned.priority


def _id_of(found: tuple[BucketQueue, ClaimedJob]) -> bytes:
    return found[1].entry.id
