"""Claimed jobs of one bucket that wait for a slot, in fair turns between their tenants.

Start-time fair queueing: each tenant has a turn, a number; the job of the least turn goes first, and its tenant's turn grows
by 1 / weight. A tenant that comes in begins at the turn that is served now, so it can save up nothing. So:

* between two starts of a tenant of weight w, another one of weight v has at most v / w + 1 starts, however many of its jobs
  wait;
* the first job of a tenant that comes in starts after at most one job of each other tenant of its weight;
* no slot is idle while a job of any tenant waits, but the spare slots.

Turns alone are not enough where one tenant runs in every slot: the next job of another waits until one of these ends, and
runs that began together end together. So, while jobs of several tenants come, a few slots are *spare*: they are for tenants
that run fewer jobs than their share of the slots, counted with one more tenant to come. A tenant within its share is never
passed over.

Jobs without a tenant are those of one tenant without a name.

What memory has no room for is *shed*: it goes to the master. From then on jobs of that tenant wait behind those there, until
these are fetched; otherwise a lasting flood would start its newest jobs, and those that were shed at its end.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping

from jobmaster.model.flow.tenant import NO_TENANT, tenant_of
from jobmaster_agents.state.job_table import ClaimedJob

SPARED_SLOTS = 10
"""Slots of a bucket from which on one at least is spare."""
CONTESTED_SECONDS = 60.0
"""How long after the last job of a second tenant a bucket still reckons with several."""
_KEPT_TURNS = 256
"""Turns of tenants without a waiting job that are kept before the old ones are forgotten."""


def spare_slots(slots: int, part: float) -> int:
    """How many slots of a bucket are spare.

    Args:
        part: of the slots; 0: none.
    """
    return max(int(slots * part), 1) if part and slots >= SPARED_SLOTS else 0


class _Tenant:
    """The waiting jobs of one tenant."""

    __slots__ = ("jobs", "name", "weight")

    def __init__(self, name: str, weight: int) -> None:
        self.name = name
        self.weight = weight
        self.jobs: deque[ClaimedJob] = deque()


_Line = tuple[float, int, _Tenant]
"""Turn, number and tenant."""


class TenantQueue:
    """A queue with the methods of a deque that the executor uses.

    Args:
        weights: of tenants; the others have 1.
        jobs: the first jobs.
        running: jobs without a tenant that run already.
    """

    def __init__(self, weights: Mapping[str, int], jobs: Iterable[ClaimedJob] = (), running: int = 0) -> None:
        self._weights = weights
        self.slots = self.spare = 0
        """Jobs of the bucket that may run at once, and how many of these slots are spare."""
        self._running = {NO_TENANT: running}
        """Jobs that run, by tenant."""
        self._front: deque[ClaimedJob] = deque()
        """Jobs that had their turn and came back: no permit was there, or the master was away."""
        self._tenants: dict[str, _Tenant] = {}
        """Those with waiting jobs."""
        self._weight = 0
        """Of these together."""
        self._order: list[_Line] = []
        """Heap: one line for each tenant with waiting jobs."""
        self._next: dict[str, float] = {}
        """The next turn of tenants without a waiting job."""
        self._now = 0.0
        """The turn that was served last."""
        self._numbers = 0
        self._size = 0
        self._behind: set[str] = set()
        """Tenants of which jobs were shed, and may still wait in the master."""
        self._last = NO_TENANT
        """Tenant of the job that came last."""
        self._last_at = self._other_at = float("-inf")
        """When it came, and when a job of another tenant came (CLOCK_BOOTTIME seconds)."""
        for job in jobs:
            self.append(job)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[ClaimedJob]:
        yield from self._front
        for tenant in self._tenants.values():
            yield from tenant.jobs

    def __getitem__(self, index: int) -> ClaimedJob:
        """The job that is next, for index 0."""
        assert index == 0
        return self._front[0] if self._front else self._order[0][2].jobs[0]

    # ------------------------------------------------------------ in and out

    def append(self, job: ClaimedJob) -> None:
        """The last job of its tenant."""
        name = tenant_of(job.entry.headers)
        self._note(name, job.claimed_list.claimed_at)
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = _Tenant(name, self._weights.get(name, 1))
            self._weight += tenant.weight
            self._push(max(self._next.pop(name, 0.0), self._now), tenant)
        tenant.jobs.append(job)
        self._size += 1

    def appendleft(self, job: ClaimedJob) -> None:
        """A job that was taken before: it is next."""
        self._front.appendleft(job)
        self._size += 1

    def extendleft(self, jobs: Iterable[ClaimedJob]) -> None:
        """Each job in front of the one before, as of a deque."""
        for job in jobs:
            self.appendleft(job)

    def popleft(self) -> ClaimedJob:
        """The next job; its tenant has had a turn."""
        if self._front:
            self._size -= 1
            return self._front.popleft()
        return self._pop_turn()

    def _pop_turn(self) -> ClaimedJob:
        self._size -= 1
        turn, _, tenant = self._order[0]
        self._now = turn
        job = tenant.jobs.popleft()
        turn += 1.0 / tenant.weight
        if tenant.jobs:
            self._numbers += 1
            heapq.heapreplace(self._order, (turn, self._numbers, tenant))
        else:
            heapq.heappop(self._order)
            self._leave(tenant, turn)
        return job

    def clear(self) -> None:
        """Remove every job."""
        self.remove(list(self))

    def remove(self, jobs: Collection[ClaimedJob]) -> None:
        """Remove these jobs; the others keep their order."""
        gone = set(jobs)
        self._front = deque(job for job in self._front if job not in gone)
        for tenant in self._tenants.values():
            tenant.jobs = deque(job for job in tenant.jobs if job not in gone)
        self._settle()

    def _push(self, turn: float, tenant: _Tenant) -> None:
        self._numbers += 1
        heapq.heappush(self._order, (turn, self._numbers, tenant))

    def _leave(self, tenant: _Tenant, turn: float) -> None:
        """The tenant has no waiting job."""
        del self._tenants[tenant.name]
        self._weight -= tenant.weight
        self._next[tenant.name] = turn
        if len(self._next) > _KEPT_TURNS:
            # A turn that is served already is what a new tenant begins with.
            self._next = {name: each for name, each in self._next.items() if each > self._now}

    def _settle(self) -> None:
        """Jobs were removed: count them anew, and drop tenants without any."""
        for turn, _, tenant in self._order:
            if not tenant.jobs:
                self._leave(tenant, turn)
        self._order = [line for line in self._order if line[2].jobs]
        heapq.heapify(self._order)
        self._size = len(self._front) + sum(len(tenant.jobs) for tenant in self._tenants.values())

    # ------------------------------------------------------------ spare slots

    def started(self, job: ClaimedJob) -> None:
        """A job takes a slot."""
        name = tenant_of(job.entry.headers)
        self._running[name] = self._running.get(name, 0) + 1

    def ended(self, job: ClaimedJob) -> None:
        """A job has left its slot."""
        name = tenant_of(job.entry.headers)
        if (left := self._running.get(name, 0) - 1) > 0:
            self._running[name] = left
        else:
            self._running.pop(name, None)

    def may_start(self, free: int, now: float) -> bool:
        """True when a job of some tenant may have one of the free slots.

        Args:
            now: CLOCK_BOOTTIME seconds.
        """
        if not self._keeps_spare(free, now) or (self._front and self._is_within_share(self._front[0])):
            return self._size > 0 and free > 0
        passed = self._pass_over()
        found = bool(self._order)
        for line in passed:
            heapq.heappush(self._order, line)
        return found and free > 0

    def take(self, free: int, now: float) -> ClaimedJob | None:
        """The next job that may have one of the free slots: ``popleft`` without tenants above their share, where only
        spare slots are free."""
        if not self.may_start(free, now):
            return None
        if not self._keeps_spare(free, now) or (self._front and self._is_within_share(self._front[0])):
            return self.popleft()
        passed = self._pass_over()
        job = self._pop_turn()
        for turn, number, tenant in passed:  # a tenant that was passed over saves up nothing
            heapq.heappush(self._order, (max(turn, self._now), number, tenant))
        return job

    def _keeps_spare(self, free: int, now: float) -> bool:
        return free <= self.spare and self.is_contested(now)

    def _pass_over(self) -> list[_Line]:
        """Take tenants out of the order, up to the first one within its share."""
        passed: list[_Line] = []
        while self._order and not self._is_within_share(self._order[0][2].jobs[0]):
            passed.append(heapq.heappop(self._order))
        return passed

    def _is_within_share(self, job: ClaimedJob) -> bool:
        """True when the job's tenant runs less than its share of the slots."""
        name = tenant_of(job.entry.headers)
        share = self.slots * self._weights.get(name, 1) / (self._weight + 1)
        return self._running.get(name, 0) < max(share, 1.0)

    # ------------------------------------------------------------ shares

    def reweigh(self, weights: Mapping[str, int]) -> None:
        """Other weights, from the next turns on."""
        self._weights = weights
        for tenant in self._tenants.values():
            tenant.weight = weights.get(tenant.name, 1)
        self._weight = sum(tenant.weight for tenant in self._tenants.values())

    def is_contested(self, now: float) -> bool:
        """True while jobs of more than one tenant come."""
        return now - self._other_at < CONTESTED_SECONDS

    def over_share(self, room: int, least: int) -> list[str]:
        """Tenants of which as many jobs wait as their share of ``room``, by weight among those that have waiting jobs.

        Args:
            least: the smallest share: jobs that keep the slots busy until more are fetched.
        """
        return [
            tenant.name
            for tenant in self._tenants.values()
            if len(tenant.jobs) >= max(room * tenant.weight / self._weight, least)
        ]

    def shed(self, room: int, least: int) -> list[ClaimedJob]:
        """Remove and return what is more than ``room``: the newest jobs of the tenants with the most jobs for their weight,
        of none more than those over its share."""
        shed: list[ClaimedJob] = []
        if self._size <= room:
            return shed
        over = {name: self._tenants[name] for name in self.over_share(room, least)}
        heaviest = [(-len(tenant.jobs) / tenant.weight, name) for name, tenant in over.items()]
        heapq.heapify(heaviest)
        while heaviest and self._size - len(shed) > room:
            tenant = over[heaviest[0][1]]
            shed.append(tenant.jobs.pop())
            if len(tenant.jobs) > max(room * tenant.weight / self._weight, least):
                heapq.heapreplace(heaviest, (-len(tenant.jobs) / tenant.weight, tenant.name))
            else:
                heapq.heappop(heaviest)
        self._behind.update(tenant_of(job.entry.headers) for job in shed)
        self._settle()
        return shed

    def take_behind(self, jobs: Iterable[ClaimedJob], least: int) -> tuple[list[ClaimedJob], list[ClaimedJob]]:
        """Jobs that come from a producer: those that may wait here, and those that wait behind jobs of their tenant in the
        master. (Fewer than ``least`` never wait there: slots are not idle while jobs are fetched.)"""
        here, behind = [], []
        coming: dict[str, int] = {}
        for job in jobs:
            name = tenant_of(job.entry.headers)
            if name not in self._behind or job.entry.token > 1:
                here.append(job)
                continue
            waiting = coming.get(name) or (len(self._tenants[name].jobs) if name in self._tenants else 0)
            if waiting < least:
                coming[name] = waiting + 1
                here.append(job)
            else:
                behind.append(job)
        return here, behind

    def fetched_all(self, but: Collection[str]) -> None:
        """No job of any tenant waits in the master, but of these."""
        self._behind.intersection_update(but)

    def _note(self, name: str, at: float) -> None:
        if name != self._last:
            self._other_at = self._last_at
            self._last = name
        self._last_at = at
