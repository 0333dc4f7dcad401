"""Lost buckets are drained by any healthy agent. No leader, no job, no list of its own: the master's LOST buckets are the
work, one taken per transaction, and a rescuer that dies leaves its bucket DRAINING for the next certificate to make LOST
again.

Each store has a duty of its own, so a store that does not answer delays no bucket of another. While it is silent (``reach``)
none of its buckets is asked for or taken; a bucket that was being drained stays DRAINING with this agent. What cannot be
finished for another reason (a master that refuses, a locked row) is tried again with a growing delay, after the buckets
that are newly lost. After ``store_dead_seconds`` of silence the rows the master knows are given back without the store. (The
old owner cannot record anything about them then, and what the store brings back later is refused by the rows.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol

from jobmaster.clock import Clock
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.errors import CodeError, JobMasterError
from jobmaster.ports import Unfit
from jobmaster.rules.backoff import backoff_delay, is_logged
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.rescue.evacuation import Evacuation, EvacuationEnd, EvacuationMaster, EvacuationStore
from jobmaster_agents.state.ownership import Ownership
from jobmaster_agents.state.store_reach import StoreReach

IDLE_SECONDS = 60.0
"""Without a kick it looks this often: kicks come with renewals, so this only covers our own mistakes."""
RETRY_SECONDS = 1.0
RETRY_SECONDS_MAX = 30.0
_TAKEN_PER_TICK_MAX = 256


class RescueMaster(EvacuationMaster, Protocol):
    """Where lost buckets are taken."""

    async def take_lost(
        self, agent_id: bytes, stores: Sequence[str], floor_epochs: Mapping[bytes, int]
    ) -> Bucket | None: ...

    async def buckets(self, *, states: Sequence[BucketState] = ()) -> list[Bucket]: ...


TellOwners = Callable[[set[tuple[str, int]]], Awaitable[object]]


class _Unfinished:
    """A bucket this agent has taken and could not finish."""

    __slots__ = ("drain", "failures", "next_at", "since")

    def __init__(self, drain: Evacuation, now: float) -> None:
        self.drain = drain
        self.failures = 0
        self.since = now
        self.next_at = now


class Rescue:
    """The duty that drains the lost buckets of one store.

    Args:
        store_name: its store in the configuration; the agent may not have joined it yet.
        store: its connection.
        reach: tells whether the store answers.
        tell_owners: jobs of a lane and priority came back to the master: their owners should fetch them now.
        store_dead_seconds: a store silent for this long is taken for dead: the master's rows no longer wait for it.
    """

    name = "rescue"

    def __init__(
        self,
        ownership: Ownership,
        master: RescueMaster,
        store_name: str,
        store: EvacuationStore,
        reach: StoreReach,
        tell_owners: TellOwners,
        clock: Clock,
        telemetry: Telemetry,
        log: EventLog,
        *,
        page_jobs: int,
        max_rescues: int,
        store_dead_seconds: float,
    ) -> None:
        self._ownership = ownership
        self._master = master
        self._store_name = store_name
        self._store = store
        self._reach = reach
        self._tell_owners = tell_owners
        self._now = clock.boottime
        self._telemetry = telemetry
        self._log = log
        self._page_jobs = page_jobs
        self._max_rescues = max_rescues
        self._store_dead_seconds = store_dead_seconds
        self._floors: dict[bytes, int] = {}
        self._unfinished: dict[bytes, _Unfinished] = {}
        self._moved: set[tuple[str, int]] = set()
        self._silences = 0
        self._leaving = False
        self._draining: asyncio.Task[EvacuationEnd] | None = None
        self._at_work = asyncio.Lock()
        self.kicked = asyncio.Event()

    def kick(self) -> None:
        """There may be lost buckets."""
        self.kicked.set()

    @property
    def unfinished(self) -> int:
        """Buckets taken and not finished."""
        return len(self._unfinished)

    async def tick(self) -> float:
        """Take lost buckets until there are none, then try again what is due."""
        if self._leaving:
            return IDLE_SECONDS
        async with self._at_work:
            await self._rescue()
        if self._moved:
            await self._tell_owners(self._moved)
            self._moved = set()
        return self._pause()

    def _pause(self) -> float:
        silent = self._reach.silent_seconds(self._store_name)
        if silent is not None and silent < self._store_dead_seconds:  # the first answer kicks
            return min(self._store_dead_seconds - silent, IDLE_SECONDS)
        soonest = min((work.next_at for work in self._unfinished.values()), default=self._now() + IDLE_SECONDS)
        return max(soonest - self._now(), 0.0)

    async def _rescue(self) -> None:
        silent = self._reach.silent_seconds(self._store_name)
        if silent is not None and silent < self._store_dead_seconds:
            return
        await self._find_own()
        before, self._silences = self._silences, self._reach.silences(self._store_name)
        if self._silences != before:
            for work in self._unfinished.values():  # their delays were for the silence
                work.next_at = min(work.next_at, self._now())
        dead = silent is not None
        known = list(self._unfinished.values())
        await self._take_lost(dead)
        for work in sorted(known, key=lambda each: each.next_at):
            if work.next_at <= self._now() and self._may_go_on(dead):
                await self._work_on(work, dead)

    async def _take_lost(self, dead: bool) -> None:
        for _ in range(_TAKEN_PER_TICK_MAX):
            if not self._may_go_on(dead):
                break
            bucket = await self._master.take_lost(self._ownership.agent_id, [self._store_name], self._floors)
            if bucket is None:
                break
            await self._work_on(self._begin(bucket), dead)

    def _may_go_on(self, dead: bool) -> bool:
        return self._sound() and (dead or self._reach.answers(self._store_name))

    async def _work_on(self, work: _Unfinished, dead: bool) -> None:
        if dead:
            await self._sweep(work)
        else:
            await self._drain(work)

    async def _find_own(self) -> None:
        """Begin with buckets that this agent has taken and does not know of, forget those that are not its own any more.

        A claim may be committed although its answer is lost, even after a later look; the master then names an agent that
        lives and never comes, and nobody else may take the bucket. So this is asked every time, and not only after an error.
        In the same way a bucket may have been closed although that answer was lost, and be forgotten by now: to fence it once
        more would bring its keys back.
        """
        draining = await self._master.buckets(states=[BucketState.DRAINING])
        mine = [each for each in draining if each.owner == self._ownership.agent_id and each.store == self._store_name]
        own = {bucket.id: bucket for bucket in mine}
        for bucket_id, work in list(self._unfinished.items()):
            if bucket_id not in own or own[bucket_id].epoch != work.drain.fence.epoch:
                del self._unfinished[bucket_id]
                self._note_superseded(work.drain)
        for bucket in own.values():
            if bucket.id not in self._unfinished:
                self._begin(bucket)

    def leave(self) -> None:
        """Begin nothing more; a drain under way is given up where it is, which is safe at every step."""
        self._leaving = True
        if self._draining is not None:
            self._draining.cancel()

    async def give_back(self) -> None:
        """Before leaving: unfinished buckets become LOST at once, so that nobody waits for this agent's lease."""
        self.leave()
        async with self._at_work:
            await self._find_own()
            for work in list(self._unfinished.values()):
                fence = work.drain.fence
                reason = "its rescuer leaves before it is drained"
                await self._master.move_bucket(*fence, BucketState.LOST, reason)
                del self._unfinished[fence.bucket_id]
                self._log.info(Event.BUCKET_GIVEN_BACK, {"bucket": fence.bucket_id})

    # ------------------------------------------------------------ one bucket

    def _sound(self) -> bool:
        return not self._leaving and self._ownership.may_commit(self._now())

    def _begin(self, bucket: Bucket) -> _Unfinished:
        self._floors.pop(bucket.id, None)
        self._telemetry.buckets_taken += 1
        self._log.info(Event.BUCKET_TAKEN, {"bucket": bucket.id, "epoch": bucket.epoch, "store": bucket.store})
        drain = Evacuation(
            bucket,
            self._master,
            self._store,
            self._sound,
            page_jobs=self._page_jobs,
            max_rescues=self._max_rescues,
            on_aside=lambda unfit: self._note_aside(bucket, unfit),
        )
        # Known from now on: whatever interrupts the drain, this agent owns the bucket and must come back to it.
        work = self._unfinished[bucket.id] = _Unfinished(drain, self._now())
        return work

    async def _drain(self, work: _Unfinished) -> None:
        began = self._now()
        work.next_at = began + RETRY_SECONDS  # whatever goes wrong here, the other buckets have their turn first
        try:
            end = await self._run(work.drain)
        except CodeError:
            raise
        except (JobMasterError, TimeoutError) as error:
            self._reach.failed(self._store_name, error)
            await self._postpone(work, type(error).__name__, str(error))
            return
        if end is EvacuationEnd.STOPPED:
            return
        if end is EvacuationEnd.VOUCHED:
            work.next_at = self._now() + work.drain.wait_seconds
            fields = {"bucket": work.drain.bucket.id, "seconds": work.drain.wait_seconds}
            self._log.info(Event.BUCKET_DRAIN_WAITS, {**fields, "reason": "its store vouched for its former owner"})
            return
        if end is EvacuationEnd.NOT_YET:
            await self._postpone(work, end, "the store refused a step, or a row is still locked")
            return
        del self._unfinished[work.drain.bucket.id]
        if end is EvacuationEnd.DRAINED:
            self._note_drained(work.drain, self._now() - began)
        elif end is EvacuationEnd.OUTRUN:
            await self._take_above(work)
        else:
            self._note_superseded(work.drain)

    async def _run(self, drain: Evacuation) -> EvacuationEnd:
        """One try, given up when the agent leaves: a store that does not answer must not hold up its exit."""
        self._draining = asyncio.ensure_future(drain.run())
        try:
            return await self._draining
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._leaving or (task is not None and task.cancelling()):
                raise
            return EvacuationEnd.STOPPED
        finally:
            self._draining = None

    async def _take_above(self, work: _Unfinished) -> None:
        """The store knows a higher epoch than the master: LOST again, and taken above it by whoever comes first."""
        drain = work.drain
        self._floors[drain.bucket.id] = drain.store_epoch
        reason = f"its store holds epoch {drain.store_epoch}, the rescuer only {drain.fence.epoch}"
        try:
            still_ours = await self._master.move_bucket(*drain.fence, BucketState.LOST, reason)
        except (JobMasterError, TimeoutError):
            self._unfinished[drain.bucket.id] = work  # still ours perhaps: fence, be refused, and come here again
            raise
        if not still_ours:
            self._note_superseded(drain)

    async def _postpone(self, work: _Unfinished, error: str, reason: str) -> None:
        now = self._now()
        if work.failures == 0:
            work.since = now
        work.failures += 1
        work.next_at = now + backoff_delay(work.failures, RETRY_SECONDS, RETRY_SECONDS_MAX)
        self._telemetry.drains_postponed += 1
        if is_logged(work.failures):
            fields = {"failures": work.failures, "error": error, "reason": reason}
            self._log.warning(Event.BUCKET_DRAIN_POSTPONED, {**_fields(work.drain), **fields})
        if now - work.since >= self._store_dead_seconds:
            await self._sweep(work)

    async def _sweep(self, work: _Unfinished) -> None:
        """The rows that name the bucket, without its store."""
        work.next_at = self._now() + RETRY_SECONDS_MAX
        moved = await work.drain.sweep_rows()
        self._telemetry.jobs_moved += moved
        if moved:
            self._moved.add((work.drain.bucket.lane, work.drain.bucket.priority))

    def _note_aside(self, bucket: Bucket, unfit: Sequence[Unfit]) -> None:
        self._telemetry.entries_put_aside += len(unfit)
        for each in unfit:
            fields = {"bucket": bucket.id, "job": each.id, "kind": each.kind, "reason": each.why}
            self._log.error(Event.ENTRY_QUARANTINED, fields)

    def _note_superseded(self, drain: Evacuation) -> None:
        self._floors.pop(drain.bucket.id, None)
        self._telemetry.drains_superseded += 1
        self._log.warning(Event.BUCKET_DRAIN_SUPERSEDED, _fields(drain))

    def _note_drained(self, drain: Evacuation, seconds: float) -> None:
        telemetry = self._telemetry
        telemetry.buckets_drained += 1
        telemetry.jobs_moved += drain.moved
        telemetry.jobs_rescued += drain.rescued
        telemetry.jobs_given_up += drain.failed
        telemetry.drain_refusals += drain.refused
        telemetry.drain_seconds.observe(seconds)
        if drain.moved:
            self._moved.add((drain.bucket.lane, drain.bucket.priority))
        self._log.info(Event.BUCKET_DRAINED, {**_fields(drain), "seconds": seconds})
        if drain.failed:
            self._log.error(Event.JOBS_GIVEN_UP, {"bucket": drain.bucket.id, "jobs": drain.failed})


def _fields(drain: Evacuation) -> dict[str, object]:
    return {
        "bucket": drain.bucket.id,
        "epoch": drain.fence.epoch,
        "store": drain.bucket.store,
        "moved": drain.moved,
        "rescued": drain.rescued,
        "swept": drain.swept,
        "refused": drain.refused,
    }


class Rescuers:
    """The rescue duties of one agent, by the name of their store."""

    def __init__(self, duties: Mapping[str, Rescue]) -> None:
        self.duties = dict(duties)

    def kick(self, stores: Collection[str] | None = None) -> None:
        """There may be lost buckets in these stores; ``None``: in any."""
        for name, duty in self.duties.items():
            if stores is None or name in stores:
                duty.kick()

    async def give_back(self) -> None:
        """Before leaving: every unfinished bucket becomes LOST."""
        for duty in self.duties.values():
            duty.leave()
        for duty in self.duties.values():
            await duty.give_back()
