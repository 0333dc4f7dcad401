"""Moves HELD jobs that are due soon from the master into this agent's buckets: the row is marked first, the copy put second.

Driven, never polling: the leader (or a producer after its commit) leaves a hint in a bucket, a claim reads it, and as long as
the master has more, the next batch is fetched when the bucket falls below its low-water mark. A bucket that is full of jobs
due later still takes those that are due now, so that jobs which wait for their time never block jobs which are due.

Where the cluster has other agents, no bucket takes more than its turn, so that jobs which become due together spread over all
buckets with room: a few jobs for each slot, and as many as the bucket finishes in a second. A hint is worth one turn. After
that the bucket takes jobs that are due now, and only while it is short of work; the rest is left to the next bucket with a
hint. In a bucket that has had jobs of tenants, each tenant gets a few jobs in turn, and those that have their share of memory
get none.

A crash between the two steps leaves ASSIGNED rows without a copy, which anti-entropy or the rescue returns to HELD.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from jobmaster.clock import Clock
from jobmaster.model.errors import Refused, Unavailable
from jobmaster.model.ids import Fence
from jobmaster.model.job import Entry
from jobmaster.ports import FetcherOnboarding, FetchScope, StepScope, TenantTurns
from jobmaster.rules import capabilities
from jobmaster.settings.model import Thresholds
from jobmaster_agents.call_retry import Backoff
from jobmaster_agents.execute.bucket_queues import BucketQueue
from jobmaster_agents.execute.executor import Executor
from jobmaster_agents.outcomes.bucket_enqueuer import BucketEnqueuer
from jobmaster_agents.state.ownership import OnForgotten, OwnedBucket, Ownership
from jobmaster_agents.state.pauses import Pauses
from jobmaster_agents.state.progress import Progress

_FETCHERS = 4
_QUERIES_MAX = 2
"""Most queries in flight in the master, for different buckets. Other fetchers put their batches meanwhile: the master never
waits for the store."""
TURN_SLOTS = 2
"""Jobs for each slot that a bucket takes in one turn, beside those that it finishes in a second."""
_EMPTY_ROUNDS = 2
"""Rounds of tenants that find nothing before nothing is there: a job that was on its way may come into the master behind the
place that the first one has reached."""
_LOOK_SECONDS = 0.02
_CLAIM_SECONDS = 0.5
"""Longest wait for the claim of jobs of tenants that were put: none follows when all of them are due later."""
_REST_SECONDS = 5.0
_RATE_SECONDS = 1.0
"""The rate of a bucket is measured over at least so long. (The leader sends hints as often.)"""


class _Due:
    """What is known about the HELD jobs for one bucket."""

    __slots__ = (
        "ahead",
        "backlog",
        "claimed",
        "coming",
        "crowded",
        "empty_rounds",
        "hinted",
        "looks_at",
        "measured_at",
        "more",
        "only_later",
        "owned",
        "per_second",
        "put_at",
        "querying",
        "rests_until",
        "waits_for",
    )  # fmt: skip

    def __init__(self, owned: OwnedBucket) -> None:
        self.owned = owned
        self.ahead = 0
        """Jobs put into the bucket and not yet claimed from it (an estimate: retries pass by it)."""
        self.coming = 0
        """Jobs that are being put into it."""
        self.hinted = False
        """A hint came that HELD jobs are due, and no query has followed yet."""
        self.more = False
        """The last query ended at its limit."""
        self.querying = False
        """A query is in flight. While one batch is put into the store, the next may be queried."""
        self.only_later = True
        """At the last claim, no onboarded job that was due waited in the bucket."""
        self.crowded = False
        """The bucket is over its high-water mark: jobs put into it would only be spilled again."""
        self.per_second = 0.0
        """Jobs that it has finished a second, lately."""
        self.measured_at = 0.0
        self.put_at = 0.0
        """When jobs were last put into the bucket."""
        self.rests_until = 0.0
        """Until then a hint counts only when a slot is free: jobs of the bucket have just waited too long."""
        self.empty_rounds = 0
        """Rounds of tenants that found nothing, one after another."""
        self.looks_at = 0.0
        """When the next round begins, after an empty one."""
        self.waits_for: int | None = None
        """Only jobs of tenants are left that have their share: nothing is fetched without a hint until no more jobs wait in
        memory than this."""
        self.claimed = self.backlog = 0
        """Since ``measured_at``, and in memory then, those included that were given back so far for their tenants."""


class DueFetcher:
    """Fetches for all buckets of one process; the next batch for a bucket is queried while the last one is put.

    Args:
        on_forgotten: an answer of the store shows that a bucket has another owner.
    """

    def __init__(
        self,
        onboarding: FetcherOnboarding,
        bucket_enqueuer: BucketEnqueuer,
        executor: Executor,
        ownership: Ownership,
        thresholds: Thresholds,
        clock: Clock,
        on_forgotten: OnForgotten,
        handlers: Sequence[str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._onboarding = onboarding
        self._bucket_enqueuer = bucket_enqueuer
        self._executor = executor
        self._ownership = ownership
        self._thresholds = thresholds
        self._now = clock.boottime
        self._on_forgotten = on_forgotten
        self._served = handlers
        self._handlers = handlers
        """Those that are not paused."""
        self._paused_tags: Sequence[str] = ()
        self._scope = FetchScope(sorted(capabilities.CAPABILITIES))
        self._progress = progress or Progress(clock.boottime)
        self._due: dict[bytes, _Due] = {}
        self._kicked: dict[bytes, None] = {}
        self._work = asyncio.Event()
        self._querying = 0
        self.alone = False
        """The last renewal named no other living agent: no other bucket waits for a turn."""
        self.onboarded = 0
        self.released = 0
        self.behind = 0
        """Jobs that lay before the place where queries began (given back, or passed by)."""

    # ------------------------------------------------------------ signals

    def open(self, owned: OwnedBucket) -> None:
        """Serve a bucket; the first query follows at once."""
        self._due[owned.fence.bucket_id] = _Due(owned)
        self.kick(owned.fence.bucket_id)

    def close(self, bucket_id: bytes) -> None:
        """Fetch no more for the bucket."""
        self._due.pop(bucket_id, None)
        self._kicked.pop(bucket_id, None)

    def kick(self, bucket_id: bytes) -> None:
        """HELD jobs of the bucket's lane and priority are due soon."""
        due = self._due.get(bucket_id)
        if due is not None:
            due.hinted = True
            self._queue(due)

    def apply_pauses(self, pauses: Pauses) -> None:
        """Fetch jobs of handlers and with tags that are not paused; what was passed over before may be there now."""
        if self._served is not None:
            self._handlers = [
                name for name in self._served if name not in pauses.handlers and name not in pauses.barred
            ]
        self._scope = self._scope._replace(trials=sorted(pauses.trials), trial_handlers=sorted(pauses.barred))
        self._paused_tags = sorted(pauses.tags)
        for bucket_id in self._due:
            self.kick(bucket_id)

    def has_room(self, bucket_id: bytes) -> None:
        """The bucket has finished jobs."""
        due = self._due.get(bucket_id)
        if due is not None:
            self._queue(due)

    def rest(self, bucket_id: bytes) -> None:
        """Jobs of the bucket have waited too long, and go to other agents: take no turn of them while no slot is free."""
        if (due := self._due.get(bucket_id)) is not None:
            due.rests_until = self._now() + _REST_SECONDS

    def put_at(self, bucket_id: bytes) -> float:
        """When jobs were last put into the bucket (CLOCK_BOOTTIME seconds); 0 = never."""
        due = self._due.get(bucket_id)
        return 0.0 if due is None else due.put_at

    def claimed(
        self, bucket_id: bytes, jobs: int, onboarded: int, next_due_seconds: float | None, *, crowded: bool
    ) -> None:
        """The result of a claim from the bucket.

        Args:
            jobs: how many were claimed.
            onboarded: how many of the claimed jobs had come from the master.
            next_due_seconds: when the next such job is due, negative when it is overdue; ``None``: none waits.
            crowded: more jobs of producers wait than the bucket should hold.
        """
        due = self._due.get(bucket_id)
        if due is None:
            return
        due.ahead = 0 if next_due_seconds is None else max(due.ahead - onboarded, 0)
        due.only_later = next_due_seconds is None or next_due_seconds > 0.0
        due.crowded = crowded
        self._measure(due, jobs)
        self._queue(due)

    def _measure(self, due: _Due, claimed: int) -> None:
        due.claimed += claimed
        now = self._now()
        if now - due.measured_at >= _RATE_SECONDS:
            queue = self._executor.queue_of(due.owned.fence.bucket_id)
            backlog = len(queue.jobs) + queue.running + queue.returned_jobs if queue is not None else 0
            due.per_second = max(due.claimed - (backlog - due.backlog), 0) / (now - due.measured_at)
            due.measured_at, due.claimed, due.backlog = now, 0, backlog

    def _queue(self, due: _Due) -> None:
        if self._horizon(due) is not None:
            self._kicked[due.owned.fence.bucket_id] = None
            self._work.set()

    def _horizon(self, due: _Due) -> float | None:
        """How far ahead to fetch now, in seconds; ``None``: not at all, until a claim or a hint changes that."""
        # A closed bucket is queued again when it is resumed. To queue it before would spin without a pause.
        if due.owned.closed or due.owned.lost or due.crowded or not (due.hinted or due.more):
            return None
        if due.owned.paused or (self._handlers == [] and not self._scope.trials):
            return None  # until it is resumed
        if self._bucket_enqueuer.is_repeating(due.owned.fence.bucket_id):
            return None  # until the store has answered
        if due.rests_until and self._now() < due.rests_until:
            bucket_id = due.owned.fence.bucket_id
            if self._executor.backlog(bucket_id) >= self._executor.slots_of(bucket_id):
                self._executor.want_room(bucket_id, 0)
                return None
        queue = self._executor.queue_of(due.owned.fence.bucket_id)
        if queue is not None and queue.is_fair:
            return self._fair_horizon(due, queue)
        below = due.ahead + due.coming < self._thresholds.assigned_low_water
        if below and (due.hinted or self.alone):
            return self._thresholds.transient_threshold_seconds
        if self.alone:
            return 0.0 if due.hinted and due.only_later else None
        wanted = 2 * self._turn(due)  # while one batch is put the next is queried
        bucket_id = due.owned.fence.bucket_id
        unclaimed = due.coming + (0 if due.only_later else due.ahead)
        if self._executor.backlog(bucket_id) + unclaimed < wanted:
            return 0.0
        # All wanted jobs may be running: then the end of every job is the moment to look again.
        self._executor.want_room(bucket_id, max(wanted - self._executor.slots_of(bucket_id) - 1, 0))
        return None

    # ------------------------------------------------------------ buckets with tenants

    def _fair_horizon(self, due: _Due, queue: BucketQueue) -> float | None:
        """The same for a bucket with tenants: what is fetched fits into memory, so that no job waits in the bucket behind
        jobs of another tenant."""
        now = self._now()
        if due.coming or now < due.looks_at or (not due.only_later and now < due.put_at + _CLAIM_SECONDS):
            return None  # until the claim, or that time
        if due.hinted:
            return self._thresholds.transient_threshold_seconds
        most = queue.room - queue.least_share if due.waits_for is None else due.waits_for
        if len(queue.jobs) > max(most, 0):
            self._executor.want_room(queue.bucket_id, max(most, 0))
            return None
        return 0.0

    def _fetched_all(self, due: _Due, queue: BucketQueue, turns: TenantTurns) -> None:
        """A whole round has found no job of any tenant, but those that have their share and were passed over."""
        due.waits_for, due.more = None, True
        due.empty_rounds = 0 if queue.is_giving_back else due.empty_rounds + 1
        if due.empty_rounds < _EMPTY_ROUNDS:
            due.looks_at = self._now() + _LOOK_SECONDS
            asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._again, due)
            return
        queue.fetched_all(turns.over_share)
        if turns.over_share:
            due.waits_for = len(queue.jobs) // 2
        else:
            due.more = False

    def _turn(self, due: _Due) -> int:
        """The most that the bucket takes at once."""
        batch = self._thresholds.transfer_batch
        queue = self._executor.queue_of(due.owned.fence.bucket_id)
        if queue is not None and queue.is_fair:
            return min(max(queue.room - len(queue.jobs), queue.least_share), batch)
        if self.alone:
            return batch
        return min(TURN_SLOTS * self._executor.slots_of(due.owned.fence.bucket_id) + int(due.per_second), batch)

    def step_scope(self, owned: OwnedBucket) -> StepScope | None:
        """Which next steps of workflows the bucket takes with the outcomes of the steps before them, beside what is fetched.

        ``None``: none. Where others may have a free slot and this bucket has none, the next step is any bucket's.
        """
        due = self._due.get(owned.fence.bucket_id)
        if due is None or owned.closed or owned.lost or owned.paused or due.crowded:
            return None
        if not self._ownership.may_start(self._now()) or (due.rests_until and self._now() < due.rests_until):
            return None
        bucket_id, handlers = owned.fence.bucket_id, self._free_handlers()
        if not self.alone and self._executor.backlog(bucket_id) >= self._executor.slots_of(bucket_id):
            return None
        return StepScope(owned.lane, owned.priority, handlers, self._paused_tags, self._scope.capabilities)

    def _free_handlers(self) -> Sequence[str] | None:
        """Handlers that are not paused and whose limits are not reached; ``None``: any."""
        full = self._executor.aside.full_handlers
        if not full or self._handlers is None:
            return self._handlers
        return [name for name in self._handlers if name not in full]

    # ------------------------------------------------------------ fetching

    async def run(self) -> None:
        """Fetch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_FETCHERS):
                group.create_task(self._fetch_loop(), name="jobmaster-due-fetcher")

    async def _fetch_loop(self) -> None:
        backoff = Backoff("onboard", self._bucket_enqueuer.log)
        with self._progress.expect("a due fetcher"):
            while True:
                due = self._next()
                if due is None:
                    self._work.clear()
                    with self._progress.waiting:
                        await self._work.wait()
                    continue
                self._progress.note()
                try:
                    await self._fetch(due)
                    backoff.succeeded()
                except (Unavailable, Refused) as error:
                    # Rows may be ASSIGNED without a copy now: anti-entropy returns them after its grace period.
                    due.hinted = True
                    await backoff.pause(error)
                self._again(due)

    def _again(self, due: _Due) -> None:
        if self._due.get(due.owned.fence.bucket_id) is due:
            self._queue(due)

    def _next(self) -> _Due | None:
        if self._querying == _QUERIES_MAX:
            return None
        for bucket_id in self._kicked:
            due = self._due[bucket_id]
            if not due.querying:
                del self._kicked[bucket_id]
                return due
        return None

    async def _fetch(self, due: _Due) -> None:
        """One batch."""
        due.querying = True
        self._querying += 1
        try:
            fence, entries = await self._query(due)
        finally:
            due.querying = False
            self._querying -= 1
            if self._kicked:
                self._work.set()
        if entries:
            due.coming += len(entries)
            self._again(due)
            self._progress.note()
            try:
                await self._put(due, fence, entries)
            finally:
                due.coming -= len(entries)

    async def _query(self, due: _Due) -> tuple[Fence, list[Entry]]:
        """The next batch, ASSIGNED under the fence that is returned."""
        owned = due.owned
        while not self._ownership.may_start(self._now()):
            with self._progress.waiting:
                await self._ownership.wait_trusted()
        fence = owned.fence
        horizon = self._horizon(due)
        if horizon is None:
            return fence, []
        due.hinted = False
        queue = self._executor.queue_of(fence.bucket_id)
        fair = queue if queue is not None and queue.is_fair else None
        turns = None if fair is None else TenantTurns(fair.over_share(fair.room), self._executor.tenants.weights)
        answer = await self._onboarding.onboard(
            fence,
            owned.lane,
            owned.priority,
            horizon,
            self._turn(due),
            self._free_handlers(),
            self._paused_tags,
            self._scope if turns is None else self._scope._replace(tenants=turns),
        )
        self.behind += answer.behind
        if not answer.bucket_ok:
            due.more = False
            if not owned.closed:
                self._ownership.write_refused(owned, "onboarding was refused by the bucket's lock")
            return fence, []
        if fair is not None and turns is not None and not answer.entries and not answer.more:
            self._fetched_all(due, fair, turns)
        elif horizon > 0.0 or not self.alone or fair is not None:
            due.waits_for, due.more, due.empty_rounds = None, answer.more, 0
        else:
            due.hinted = due.hinted or answer.more
        if answer.entries:
            due.only_later = False  # until the next claim
        return fence, answer.entries

    async def _put(self, due: _Due, fence: Fence, entries: list[Entry]) -> None:
        """Put the copies; rows of jobs that the bucket does not take go back by their identity."""
        result = await self._bucket_enqueuer.put(fence, entries)
        if result.done or result.repeated:
            self.onboarded += len(entries)
            due.ahead += len(entries)
            due.put_at = self._now()
            return
        while not self._ownership.may_commit(self._now()):
            with self._progress.waiting:
                await self._ownership.wait_trusted()
        self._progress.note()
        if result.left:
            self.released += len(result.left)
            await self._onboarding.release(fence, [(entry.id, entry.token) for entry in result.left])
        if result.reply is None:
            raise Unavailable("the agent store did not take a batch of onboarded jobs; they were given back")
        if result.shows_loss(due.owned, fence):
            self._on_forgotten(fence.bucket_id, f"the store answered {result.reply} to an assignment", result.reply)
