"""How much waits in the cluster, for how long, and how fast it is taken: the gauges of the leader, and the answer to an
autoscaler, which any agent gives.

One look is one statement in the master, which counts HELD jobs by an index up to a bound, and one small call for each bucket,
all of one store in one write. Claims count in their bucket what they take out of it, so two looks give the rate of the whole
cluster without a report of any agent. The leader looks every ``EVERY_SECONDS``; another agent looks when it is asked, as
often at most. A look that takes long is made less often (``_SHARE``), so its cost is bounded whatever the master holds.

Not counted are jobs that an agent has in memory (``jobmaster_jobs_queued`` of that agent): another agent would not get them.
Jobs that no agent can run, or that a pause keeps back, are counted until the leader puts them off.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from jobmaster.clock import Clock
from jobmaster.metric_values import OTHER, Labels
from jobmaster.model.bucket import BucketBacklog
from jobmaster.model.errors import CodeError, JobMasterError, Unavailable
from jobmaster.model.job import Priority
from jobmaster.ports import BacklogQueries, BacklogStore, FilledBucket
from jobmaster.telemetry import GROUPS_MAX, Telemetry
from jobmaster_agents.state.store_reachability import StoreReachability

EVERY_SECONDS = 5.0
"""Time between two looks."""
JOBS_MAX = 100_000
"""HELD jobs of one lane and priority that a look counts: so many due ones, and so many of the others."""
RATE_SECONDS = 60.0
"""Time over which the rate is measured; longer, when looks are further apart."""
STORE_SECONDS = 1.0
"""Time limit for the answer of one store."""
ANSWER_SECONDS = 3.0
"""Time limit for an answer to an autoscaler."""
IDLE_SECONDS = 60.0
_SHARE = 50
"""A look is made no more often than after so many times as long as it took: it takes 2 % of one connection at most."""
_STALE_LOOKS = 3

Group = tuple[str, int]
"""Lane and priority."""


class GroupBacklog(NamedTuple):
    """Waiting jobs of one lane and priority, or of several together."""

    pending: int = 0
    assigned: int = 0
    held_due: int = 0
    held_later: int = 0
    oldest_seconds: float = 0.0
    capped: bool = False
    """There are more HELD jobs than were counted."""

    @property
    def jobs(self) -> int:
        """Jobs that could run now."""
        return self.pending + self.assigned + self.held_due

    def plus(self, other: GroupBacklog) -> GroupBacklog:
        """Both together."""
        return GroupBacklog(
            self.pending + other.pending,
            self.assigned + other.assigned,
            self.held_due + other.held_due,
            self.held_later + other.held_later,
            max(self.oldest_seconds, other.oldest_seconds),
            self.capped or other.capped,
        )


class _Look(NamedTuple):
    at: float
    took_seconds: float
    groups: dict[Group, GroupBacklog]
    buckets: list[FilledBucket]
    slots: dict[bytes, int]
    buckets_unread: int
    """Buckets of stores that did not answer."""

    @property
    def lasts_seconds(self) -> float:
        """Time until the next look."""
        return max(EVERY_SECONDS, self.took_seconds * _SHARE)


class TakenRates:
    """How many jobs are taken out of buckets in a second, from counters that each bucket has for itself."""

    class _Step(NamedTuple):
        since: float
        at: float
        jobs: Counter[Group]

    def __init__(self) -> None:
        self._taken: dict[bytes, int] = {}
        self._at: float | None = None
        self._steps: deque[TakenRates._Step] = deque()

    def note(self, now: float, taken: Mapping[bytes, tuple[Group, int]], known: Iterable[bytes]) -> None:
        """The counters of one moment.

        Args:
            now: seconds on a clock that only goes forward.
            taken: by bucket; without those of a silent store.
            known: ids of every bucket that there is.
        """
        jobs: Counter[Group] = Counter()
        for bucket_id, (group, count) in taken.items():
            jobs[group] += max(count - self._taken.get(bucket_id, count), 0)
        present = {bucket_id: count for bucket_id, (_, count) in taken.items()}
        self._taken = {each: self._taken[each] for each in known if each in self._taken} | present
        if self._at is not None:
            self._steps.append(self._Step(self._at, now, jobs))
        self._at = now
        while len(self._steps) > 1 and self._steps[0].at <= now - RATE_SECONDS:
            self._steps.popleft()

    def per_second(self, chosen: Callable[[Group], bool]) -> float | None:
        """Rate of some groups together; ``None`` before the second look."""
        if not self._steps or self._steps[-1].at <= self._steps[0].since:
            return None
        jobs = sum(count for step in self._steps for group, count in step.jobs.items() if chosen(group))
        return jobs / (self._steps[-1].at - self._steps[0].since)


class BacklogMonitor:
    """Periodic task of the leader, and the answer to autoscalers.

    Args:
        reachability: silent stores are skipped.
        leads: returns whether this agent leads.
    """

    name = "backlog"

    def __init__(
        self,
        queries: BacklogQueries,
        stores: Mapping[str, BacklogStore],
        reachability: StoreReachability,
        leads: Callable[[], bool],
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._queries = queries
        self._stores = stores
        self._reachability = reachability
        self._leads = leads
        self._now = clock.boottime
        self._rates = TakenRates()
        self._last: _Look | None = None
        self._looking: asyncio.Task[_Look] | None = None
        self.kicked = asyncio.Event()
        telemetry.read_series("backlog_jobs", self._jobs)
        telemetry.read_series("oldest_due_seconds", self._oldest)
        telemetry.read_series("held_jobs", self._held)

    # ------------------------------------------------------------ looks

    def changed(self) -> None:
        """This agent leads now, or leads no more."""
        self.kicked.set()

    async def tick(self) -> float:
        """Look, while this agent leads; seconds until the next look."""
        if not self._leads():
            return IDLE_SECONDS
        look = await self._look()
        return max(look.at + look.lasts_seconds - self._now(), 0.0)

    async def _look(self) -> _Look:
        """The last look, or a new one when that is too old. Several callers share one."""
        if self._last is not None and self._now() < self._last.at + self._last.lasts_seconds:
            return self._last
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_anew(), name="jobmaster-backlog-look")
        # A caller may give up; the statement goes on for the others, and its connection is kept.
        return await asyncio.shield(self._looking)

    async def _look_anew(self) -> _Look:
        began = self._now()
        found = await self._queries.backlog(JOBS_MAX)
        groups = {(bucket.lane, bucket.priority): GroupBacklog() for bucket in found.buckets}
        for held in found.held:
            capped = max(held.due, held.later) >= JOBS_MAX
            group = (held.lane, held.priority)
            groups[group] = GroupBacklog(0, 0, held.due, held.later, held.oldest_seconds, capped)
        by_store: dict[str, list[FilledBucket]] = {}
        for bucket in found.buckets:
            by_store.setdefault(bucket.store, []).append(bucket)
        answers = await asyncio.gather(*(self._ask(store, buckets) for store, buckets in by_store.items()))
        taken: dict[bytes, tuple[Group, int]] = {}
        unread = 0
        for buckets, answer in zip(by_store.values(), answers, strict=True):
            if answer is None:
                unread += len(buckets)
                continue
            for bucket, each in zip(buckets, answer, strict=True):
                if each is not None:
                    group = (bucket.lane, bucket.priority)
                    groups[group] = groups[group].plus(GroupBacklog(each.pending, each.due, 0, 0, each.oldest_seconds))
                    taken[bucket.id] = (group, each.taken)
        now = self._now()
        self._rates.note(now, taken, [bucket.id for bucket in found.buckets])
        self._last = _Look(now, now - began, groups, found.buckets, found.slots, unread)
        return self._last

    async def _ask(self, store: str, buckets: Sequence[FilledBucket]) -> list[BucketBacklog | None] | None:
        """``None``: the store is silent."""
        if store not in self._stores or not self._reachability.answers(store):
            return None
        try:
            async with asyncio.timeout(STORE_SECONDS):
                return await self._stores[store].backlogs([bucket.id for bucket in buckets])
        except CodeError:
            raise
        except (JobMasterError, TimeoutError) as error:
            self._reachability.failed(store, error)
            return None

    # ------------------------------------------------------------ the answer to an autoscaler

    async def scale(self, lane: str | None, priority: Priority | None) -> dict[str, object]:
        """Figures of the whole cluster, or of a lane, of a priority, of both: see the page on operations.

        Raises:
            Unavailable: the master did not answer in time.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                look = await self._look()
        except TimeoutError:
            raise Unavailable(f"the master has not answered within {ANSWER_SECONDS:.0f} s") from None

        def chosen(group: Group) -> bool:
            return lane in (None, group[0]) and priority in (None, group[1])

        whole = GroupBacklog()
        for group, backlog in look.groups.items():
            if chosen(group):
                whole = whole.plus(backlog)
        owners = {bucket.owner for bucket in look.buckets if bucket.active and chosen((bucket.lane, bucket.priority))}
        serving = owners & look.slots.keys()
        slots = sum(look.slots[owner] for owner in serving)
        rate = self._rates.per_second(chosen)
        return {
            "backlog_jobs": whole.jobs,
            "pending": whole.pending,
            "assigned": whole.assigned,
            "held_due": whole.held_due,
            "held_jobs": whole.held_due + whole.held_later,
            "capped": whole.capped,
            "oldest_due_seconds": round(whole.oldest_seconds, 3),
            "jobs_per_second": round(rate or 0.0, 3),
            "rate_known": rate is not None,
            "backlog_seconds": round(backlog_seconds(whole.jobs, rate, slots, whole.oldest_seconds), 3),
            "slots": slots,
            "agents": len(serving),
            "buckets_unread": look.buckets_unread,
            "age_seconds": round(self._now() - look.at, 3),
        }

    # ------------------------------------------------------------ gauges

    def _shown(self) -> dict[Labels, GroupBacklog]:
        """By lane and priority, while this agent leads and its last look is not stale; beyond the bound under ``other``."""
        look = self._last
        if look is None or not self._leads() or self._now() > look.at + _STALE_LOOKS * look.lasts_seconds:
            return {}
        ordered = sorted(look.groups.items())
        shown: dict[Labels, GroupBacklog] = {
            (lane, Priority(priority).label): each for (lane, priority), each in ordered[:GROUPS_MAX]
        }
        for _, each in islice(ordered, GROUPS_MAX, None):
            shown[OTHER, OTHER] = shown.get((OTHER, OTHER), GroupBacklog()).plus(each)
        return shown

    def _jobs(self) -> dict[Labels, float]:
        return {
            (*group, where): float(jobs)
            for group, each in self._shown().items()
            for where, jobs in (("pending", each.pending), ("assigned", each.assigned), ("held_due", each.held_due))
        }

    def _oldest(self) -> dict[Labels, float]:
        return {group: each.oldest_seconds for group, each in self._shown().items()}

    def _held(self) -> dict[Labels, float]:
        return {group: float(each.held_due + each.held_later) for group, each in self._shown().items()}


def backlog_seconds(jobs: int, jobs_per_second: float | None, slots: int, oldest_seconds: float) -> float:
    """How long the waiting jobs will take.

    At the rate at which jobs were taken. When that is unknown or 0, one second for each job and slot is supposed, and no
    less than the oldest job has waited already: a backlog that nothing takes grows with time, also when it gets no job.
    """
    if not jobs:
        return 0.0
    if jobs_per_second:
        return jobs / jobs_per_second
    return max(jobs / max(slots, 1), oldest_seconds)
