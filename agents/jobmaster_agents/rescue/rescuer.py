"""Rescue: any healthy agent takes LOST buckets and evacuates them. There is no leader and no list of work: the LOST buckets
in the master are the work, one taken per transaction. A rescuer that dies leaves its bucket DRAINING, and the next death
certificate makes it LOST again.

Each store has a periodic task of its own, so a silent store delays no bucket of another store. While a store is silent none
of its buckets is taken (``state.store_reachability``); a bucket in evacuation stays DRAINING with this agent. A bucket that
cannot be finished for another reason (the master refuses, a row is locked) is tried again with a growing delay, after the
buckets that are newly lost. After ``store_dead_seconds`` of silence the rows in the master go back to HELD without the
store. (The old owner cannot record an outcome of them then, and their rows refuse the copies that the store brings back.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from jobmaster.clock import Clock
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.errors import CodeError, JobMasterError
from jobmaster.model.job import FinalRow
from jobmaster.ports import EvacuationStore, RescuerMaster, UnstorableEntry
from jobmaster.rules.backoff import backoff_delay, is_logged
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.rescue.evacuation import Evacuation, EvacuationEnd
from jobmaster_agents.state.ownership import Ownership
from jobmaster_agents.state.store_reachability import StoreReachability

IDLE_SECONDS = 60.0
"""Interval without a kick. Kicks come with renewals, so this only covers a missed one."""
RETRY_SECONDS = 1.0
RETRY_SECONDS_MAX = 30.0
_TAKEN_PER_TICK_MAX = 256


NotifyOwners = Callable[[set[tuple[str, int]]], Awaitable[object]]


class _Unfinished:
    """A bucket that this agent has taken and not finished."""

    __slots__ = ("evacuation", "failures", "next_at", "since")

    def __init__(self, evacuation: Evacuation, now: float) -> None:
        self.evacuation = evacuation
        self.failures = 0
        self.since = now
        self.next_at = now


class StoreRescuer:
    """Periodic task that evacuates the lost buckets of one store.

    Args:
        store_name: name of the store in the configuration; it may not be connected yet.
        store: connection to the store.
        reachability: whether the store answers.
        notify_owners: called with the lanes and priorities whose jobs came back to the master: their owners should fetch now.
        page_jobs: greatest number of entries in one page.
        max_rescues: a job that was rescued more often fails.
        store_dead_seconds: a store that is silent for this long is taken for dead: the rows no longer wait for it.
    """

    name = "rescuer"

    def __init__(
        self,
        ownership: Ownership,
        master: RescuerMaster,
        store_name: str,
        store: EvacuationStore,
        reachability: StoreReachability,
        notify_owners: NotifyOwners,
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
        self._reachability = reachability
        self._notify_owners = notify_owners
        self._now = clock.boottime
        self._telemetry = telemetry
        self._log = log
        self._page_jobs = page_jobs
        self._max_rescues = max_rescues
        self._store_dead_seconds = store_dead_seconds
        self._floors: dict[bytes, int] = {}
        self.unfinished: dict[bytes, _Unfinished] = {}
        self.on_ended: Callable[[Sequence[FinalRow]], None] = lambda rows: None
        """Called with the outcomes of a dead owner that the master has now."""
        self._moved: set[tuple[str, int]] = set()
        self._silences = 0
        self._leaving = False
        self._evacuating: asyncio.Task[EvacuationEnd] | None = None
        self._lock = asyncio.Lock()
        self.kicked = asyncio.Event()

    def kick(self) -> None:
        """There may be lost buckets."""
        self.kicked.set()

    async def tick(self) -> float:
        """Take lost buckets until there are none, then try again what is due."""
        if self._leaving:
            return IDLE_SECONDS
        async with self._lock:
            await self._rescue()
        if self._moved:
            await self._notify_owners(self._moved)
            self._moved = set()
        return self._pause()

    def _pause(self) -> float:
        silent = self._reachability.silent_seconds(self._store_name)
        if silent is not None and silent < self._store_dead_seconds:  # the first answer kicks
            return min(self._store_dead_seconds - silent, IDLE_SECONDS)
        soonest = min((work.next_at for work in self.unfinished.values()), default=self._now() + IDLE_SECONDS)
        return max(soonest - self._now(), 0.0)

    async def _rescue(self) -> None:
        silent = self._reachability.silent_seconds(self._store_name)
        if silent is not None and silent < self._store_dead_seconds:
            return
        await self._sync_taken()
        before, self._silences = self._silences, self._reachability.silences(self._store_name)
        if self._silences != before:
            for work in self.unfinished.values():  # their delays came from the silence
                work.next_at = min(work.next_at, self._now())
        dead = silent is not None
        known = list(self.unfinished.values())
        await self._take_lost(dead)
        for work in sorted(known, key=lambda each: each.next_at):
            if work.next_at <= self._now() and self._may_go_on(dead):
                await self._advance(work, dead)

    async def _take_lost(self, dead: bool) -> None:
        for _ in range(_TAKEN_PER_TICK_MAX):
            if not self._may_go_on(dead):
                break
            bucket = await self._master.rescue.take_lost(self._ownership.agent_id, [self._store_name], self._floors)
            if bucket is None:
                break
            await self._advance(self._begin(bucket), dead)

    def _may_go_on(self, dead: bool) -> bool:
        return self._may_write() and (dead or self._reachability.answers(self._store_name))

    async def _advance(self, work: _Unfinished, dead: bool) -> None:
        if dead:
            await self._sweep(work)
        else:
            await self._evacuate(work)

    async def _sync_taken(self) -> None:
        """Compare the buckets that this agent has taken with the master's rows.

        ``take_lost`` may be committed although its answer is lost, even after a later read. The master then names a live
        agent that does not know of the bucket, and no other agent may take it. So the rows are read every time, and not only
        after an error. In the same way a bucket may have been closed although that answer was lost, and be forgotten by now:
        to fence it again would bring its keys back.
        """
        evacuating = await self._master.queries.list_buckets(states=[BucketState.DRAINING])
        mine = [
            each for each in evacuating if each.owner == self._ownership.agent_id and each.store == self._store_name
        ]
        own = {bucket.id: bucket for bucket in mine}
        for bucket_id, work in list(self.unfinished.items()):
            if bucket_id not in own or own[bucket_id].epoch != work.evacuation.fence.epoch:
                del self.unfinished[bucket_id]
                self._note_superseded(work.evacuation)
        for bucket in own.values():
            if bucket.id not in self.unfinished:
                self._begin(bucket)

    def stop(self) -> None:
        """Start no evacuation any more; a running one is cancelled, which is safe at every step."""
        self._leaving = True
        if self._evacuating is not None:
            self._evacuating.cancel()

    async def give_back(self) -> None:
        """Before the exit: unfinished buckets become LOST at once, so that no rescue waits for this agent's lease."""
        self.stop()
        async with self._lock:
            await self._sync_taken()
            for work in list(self.unfinished.values()):
                fence = work.evacuation.fence
                reason = "its rescuer leaves before it is drained"
                await self._master.buckets.move_bucket(*fence, BucketState.LOST, reason)
                del self.unfinished[fence.bucket_id]
                self._log.info(Event.BUCKET_GIVEN_BACK, {"bucket": fence.bucket_id})

    # ------------------------------------------------------------ one bucket

    def _may_write(self) -> bool:
        return not self._leaving and self._ownership.may_commit(self._now())

    def _begin(self, bucket: Bucket) -> _Unfinished:
        self._floors.pop(bucket.id, None)
        self._telemetry.buckets_taken += 1
        self._log.info(Event.BUCKET_TAKEN, {"bucket": bucket.id, "epoch": bucket.epoch, "store": bucket.store})
        evacuation = Evacuation(
            bucket,
            self._master,
            self._store,
            self._may_write,
            page_jobs=self._page_jobs,
            max_rescues=self._max_rescues,
            on_quarantined=lambda unfit: self._note_quarantined(bucket, unfit),
            on_ended=self.on_ended,
        )
        # Noted before the first step: this agent owns the bucket and must come back to it after every interruption.
        work = self.unfinished[bucket.id] = _Unfinished(evacuation, self._now())
        return work

    async def _evacuate(self, work: _Unfinished) -> None:
        began = self._now()
        work.next_at = began + RETRY_SECONDS  # after a failure the other buckets have their turn first
        try:
            end = await self._run(work.evacuation)
        except CodeError:
            raise
        except (JobMasterError, TimeoutError) as error:
            self._reachability.failed(self._store_name, error)
            await self._postpone(work, type(error).__name__, str(error))
            return
        if end is EvacuationEnd.STOPPED:
            return
        if end is EvacuationEnd.STORE_LEASE:
            work.next_at = self._now() + work.evacuation.wait_seconds
            fields = {"bucket": work.evacuation.bucket.id, "seconds": work.evacuation.wait_seconds}
            self._log.info(
                Event.BUCKET_DRAIN_WAITS, {**fields, "reason": "the store lease of its former owner has not ended"}
            )
            return
        if end is EvacuationEnd.NOT_YET:
            await self._postpone(work, end, "the store refused a step, or a row is still locked")
            return
        del self.unfinished[work.evacuation.bucket.id]
        if end is EvacuationEnd.DRAINED:
            self._note_drained(work.evacuation, self._now() - began)
        elif end is EvacuationEnd.EPOCH_BEHIND:
            await self._take_above(work)
        else:
            self._note_superseded(work.evacuation)

    async def _run(self, evacuation: Evacuation) -> EvacuationEnd:
        """One attempt, cancelled when the agent leaves: a silent store must not delay its exit."""
        self._evacuating = asyncio.ensure_future(evacuation.run())
        try:
            return await self._evacuating
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._leaving or (task is not None and task.cancelling()):
                raise
            return EvacuationEnd.STOPPED
        finally:
            self._evacuating = None

    async def _take_above(self, work: _Unfinished) -> None:
        """The store holds a higher epoch than the master: the bucket becomes LOST again, and is taken above that epoch."""
        evacuation = work.evacuation
        self._floors[evacuation.bucket.id] = evacuation.store_epoch
        reason = f"its store holds epoch {evacuation.store_epoch}, the rescuer only {evacuation.fence.epoch}"
        try:
            still_ours = await self._master.buckets.move_bucket(*evacuation.fence, BucketState.LOST, reason)
        except (JobMasterError, TimeoutError):
            self.unfinished[evacuation.bucket.id] = work  # perhaps still owned: the next attempt comes here again
            raise
        if not still_ours:
            self._note_superseded(evacuation)

    async def _postpone(self, work: _Unfinished, error: str, reason: str) -> None:
        now = self._now()
        if work.failures == 0:
            work.since = now
        work.failures += 1
        work.next_at = now + backoff_delay(work.failures, RETRY_SECONDS, RETRY_SECONDS_MAX)
        self._telemetry.drains_postponed += 1
        if is_logged(work.failures):
            fields = {"failures": work.failures, "error": error, "reason": reason}
            self._log.warning(Event.BUCKET_DRAIN_POSTPONED, {**_fields(work.evacuation), **fields})
        if now - work.since >= self._store_dead_seconds:
            await self._sweep(work)

    async def _sweep(self, work: _Unfinished) -> None:
        """Move the rows that name the bucket to HELD, without its store."""
        work.next_at = self._now() + RETRY_SECONDS_MAX
        moved = await work.evacuation.sweep_rows()
        self._telemetry.jobs_moved += moved
        if moved:
            self._moved.add((work.evacuation.bucket.lane, work.evacuation.bucket.priority))

    def _note_quarantined(self, bucket: Bucket, unfit: Sequence[UnstorableEntry]) -> None:
        self._telemetry.entries_put_aside += len(unfit)
        for each in unfit:
            fields = {"bucket": bucket.id, "job": each.id, "kind": each.kind, "reason": each.why}
            self._log.error(Event.ENTRY_QUARANTINED, fields)

    def _note_superseded(self, evacuation: Evacuation) -> None:
        self._floors.pop(evacuation.bucket.id, None)
        self._telemetry.drains_superseded += 1
        self._log.warning(Event.BUCKET_DRAIN_SUPERSEDED, _fields(evacuation))

    def _note_drained(self, evacuation: Evacuation, seconds: float) -> None:
        telemetry = self._telemetry
        telemetry.buckets_drained += 1
        telemetry.jobs_moved += evacuation.moved
        telemetry.jobs_rescued += evacuation.rescued
        telemetry.jobs_given_up += evacuation.failed
        telemetry.drain_refusals += evacuation.refused
        telemetry.drain_seconds.observe(seconds)
        if evacuation.moved:
            self._moved.add((evacuation.bucket.lane, evacuation.bucket.priority))
        self._log.info(Event.BUCKET_DRAINED, {**_fields(evacuation), "seconds": seconds})
        if evacuation.failed:
            self._log.error(Event.JOBS_GIVEN_UP, {"bucket": evacuation.bucket.id, "jobs": evacuation.failed})


def _fields(evacuation: Evacuation) -> dict[str, object]:
    return {
        "bucket": evacuation.bucket.id,
        "epoch": evacuation.fence.epoch,
        "store": evacuation.bucket.store,
        "moved": evacuation.moved,
        "rescued": evacuation.rescued,
        "swept": evacuation.swept,
        "refused": evacuation.refused,
    }


class Rescuer:
    """The rescue of one agent: one ``StoreRescuer`` for each store of the configuration."""

    def __init__(self, by_store: Mapping[str, StoreRescuer]) -> None:
        self.by_store = dict(by_store)

    def kick(self, stores: Collection[str] | None = None) -> None:
        """There may be lost buckets in these stores; ``None``: in any."""
        for name, rescuer in self.by_store.items():
            if stores is None or name in stores:
                rescuer.kick()

    async def give_back(self) -> None:
        """Before the exit: every unfinished bucket becomes LOST."""
        for rescuer in self.by_store.values():
            rescuer.stop()
        for rescuer in self.by_store.values():
            await rescuer.give_back()
