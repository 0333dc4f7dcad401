"""Gives jobs that wait longer than their ``accept_time`` for a start back to the master, so that other agents run them.

Only the owner of a bucket can do so, and it is alive: the jobs of a dead one are rescued. It knows the limit of each copy in
its memory from the copy's headers and from its own handlers, so nothing is published and nothing is asked while no job is
late. Of jobs that lie in the store behind a full memory it knows the age of the first one, and the shortest limit of its
handlers: when the first one is late, a portion is spilled, whatever else is in it. Late jobs are given back unrun as at a
graceful exit: HELD, no attempt used up, the next assignment has the next token.

The wait of a producer's copy begins with its creation or due time. That of an onboarded copy begins with its claim, because
its bucket asked for it when it had room: otherwise a job that was given back would be late everywhere at once.

When all agents are busy, another one has no room either, and a job would go round, with several writes for each round. So the
limit of a copy grows with its token: a job is given back a few times, not once per limit.

Nothing is given back while no other agent with the handler owns a bucket of the same lane and priority, while the master
does not answer, or from a frozen or paused bucket: what is paused starts nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from jobmaster.clock import Clock
from jobmaster.model.errors import Refused, Unavailable
from jobmaster.model.job import Priority
from jobmaster.ports import OwnerQueries
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.execute.bucket_queues import waited_seconds
from jobmaster_agents.execute.executor import Executor
from jobmaster_agents.fetch.claimer import Claimer
from jobmaster_agents.fetch.due_fetcher import DueFetcher
from jobmaster_agents.outcomes.outcome_builder import OutcomeBuilder
from jobmaster_agents.state.job_table import ClaimedJob, JobPhase, JobTable, by_bucket
from jobmaster_agents.state.ownership import OwnedBucket, Ownership
from jobmaster_agents.state.time_limits import accept_seconds

LOOK_SECONDS = 0.5
"""Between two looks at the jobs in memory that were claimed at least as long ago."""
_UNSCALED_TOKENS = 2
"""A producer's copy has token 1, and the first assignment of a job that waited in the master has token 2."""
_DOUBLINGS_MAX = 6
Group = tuple[str, int]


class WaitingJobs(Protocol):
    """The bucket worker, as this module uses it."""

    claimers: dict[bytes, Claimer]
    due_fetcher: DueFetcher
    job_table: JobTable
    executor: Executor
    outcome_builder: OutcomeBuilder

    def waits_elsewhere(self, job: ClaimedJob) -> bool: ...


class AcceptTime:
    """Periodic task of an agent that owns buckets.

    Args:
        alone: True when the last renewal named no other living agent.
    """

    name = "accept-time"

    def __init__(
        self,
        waiting: WaitingJobs,
        ownership: Ownership,
        queries: OwnerQueries,
        alone: Callable[[], bool],
        clock: Clock,
        telemetry: Telemetry,
        log: EventLog,
    ) -> None:
        self._waiting = waiting
        self._ownership = ownership
        self._queries = queries
        self._alone = alone
        self._now = clock.boottime
        self._telemetry = telemetry
        self._log = log

    async def tick(self) -> float:
        """Give late jobs back; seconds until the next look."""
        now = self._now()
        if self._alone() or not self._ownership.may_commit(now):
            return LOOK_SECONDS
        late: dict[Group, list[ClaimedJob]] = {}
        for job in self._late(now):
            owned = job.claimed_list.owned
            late.setdefault((owned.lane, owned.priority), []).append(job)
        try:
            for group, jobs in late.items():
                others = await self._other_owners(group, {job.entry.handler for job in jobs})
                self._give_back(group, [job for job in jobs if job.entry.handler in others and self._waits(job)])
            await self._spill_late()
        except (Unavailable, Refused):
            pass  # while the master does not answer the jobs are safest here
        return LOOK_SECONDS

    async def _other_owners(self, group: Group, handlers: Collection[str]) -> frozenset[str]:
        return await self._queries.other_owners(self._ownership.agent_id, *group, sorted(handlers))

    async def _spill_late(self) -> None:
        """Jobs that lie in the store behind a full memory: their claimer looks at the first of them, and spills a portion."""
        for claimer in list(self._waiting.claimers.values()):
            self._telemetry.jobs_not_accepted += claimer.lateness.not_accepted
            claimer.lateness.not_accepted = 0
            if claimer.lateness.accept_seconds is None or not claimer.full:
                continue
            owned = claimer.owned
            if claimer.lateness.late and not (owned.frozen or owned.paused or owned.closed or owned.lost):
                claimer.lateness.late = False
                claimer.lateness.spills = bool(
                    await self._other_owners((owned.lane, owned.priority), claimer.lateness.limited)
                )
                if claimer.lateness.spills:
                    self._waiting.due_fetcher.rest(owned.fence.bucket_id)
            claimer.wake()

    def _late(self, now: float) -> Iterable[ClaimedJob]:
        for claimed_list in self._waiting.job_table.unpersisted(now - LOOK_SECONDS):
            for job in claimed_list.jobs:
                limit = accept_seconds(job)
                is_late = limit is not None and waiting_seconds(job, now) > limit * patience(job.entry.token)
                if is_late and self._waits(job):  # in this order: the second takes the job back from the threads
                    yield job

    def _waits(self, job: ClaimedJob) -> bool:
        owned = job.claimed_list.owned
        if job.cancelled or owned.frozen or owned.paused or owned.closed or owned.lost or owned.successor is not None:
            return False
        return job.phase is JobPhase.QUEUED or (job.phase is JobPhase.RUNNING and self._waiting.waits_elsewhere(job))

    def _give_back(self, group: Group, jobs: Sequence[ClaimedJob]) -> None:
        if not jobs:
            return
        for owned, mine in by_bucket(jobs):
            self._give_back_of(owned, mine)
        self._telemetry.jobs_not_accepted += len(jobs)
        lane, priority = group
        self._log.info(Event.JOBS_NOT_ACCEPTED, {"lane": lane, "priority": Priority(priority).label, "jobs": len(jobs)})

    def _give_back_of(self, owned: OwnedBucket, jobs: Sequence[ClaimedJob]) -> None:
        late = set(jobs)
        self._waiting.due_fetcher.rest(owned.fence.bucket_id)
        for job in jobs:
            if job.phase is JobPhase.RUNNING:
                self._waiting.executor.give_back_waiting(job)
        for job in self._waiting.executor.take_some(owned.fence.bucket_id, late.__contains__):
            self._waiting.outcome_builder.release(job)


def patience(token: int) -> int:
    """Factor of the limit of a copy: 1 for the first two assignments of the job, then 4 times more with each, at most 64."""
    return 1 << min(2 * max(token - _UNSCALED_TOKENS, 0), _DOUBLINGS_MAX)


def waiting_seconds(job: ClaimedJob, now: float) -> float:
    """How long the copy has waited here: since it was created or due, an onboarded one not longer than since its claim."""
    waited = waited_seconds(job, now)
    return waited if job.entry.token == 1 else min(waited, now - job.claimed_list.claimed_at)
