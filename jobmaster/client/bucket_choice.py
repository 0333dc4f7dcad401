"""The buckets of one lane and priority: choose one, send the batch, and try the next bucket after a refusal.

One batch goes to one bucket, chosen when the batch leaves; so concurrent callers make one call and not one per bucket.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from jobmaster.client.bucket_directory import BucketDirectory, BucketHandle
from jobmaster.client.lost_answers import BatchTrial, write_once_more
from jobmaster.clock import Clock
from jobmaster.codec import encode_entry
from jobmaster.model.errors import ClockSkew, CodeError, JobMasterError, OutcomeUnknown, Refused, Unavailable
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.model.job import Durability, Entry, NewJob
from jobmaster.ports import PlacementMaster, ReplyStatus, Submitted, Written
from jobmaster.rules.placement import first_gets_job, two_choices
from jobmaster.telemetry import Telemetry

ATTEMPTS_MAX = 8
"""Buckets tried for one batch before it is given up."""
FULL_SECONDS = 0.05
"""A bucket that answered FULL is not tried again for this long."""
WINDOW_FULL_SECONDS = 0.005
"""The same for jobs of tenants: the bucket's owner makes room within milliseconds."""


class StoreLimits(NamedTuple):
    """When a store answers FULL, and how far an id's time may be off."""

    high_water_jobs: int
    high_water_bytes: int
    skew_ms_max: int


class Placement(NamedTuple):
    """Where a batch went."""

    level: Durability | None
    """``None``: nowhere."""
    bucket_id: bytes | None
    full: bool = False
    """Nowhere, because at least one bucket is over its high-water mark."""


NO_BUCKET = Placement(None, None)
ALL_FULL = Placement(None, None, True)


class BucketGroup:
    """The buckets of one lane and priority whose stores reach at least the durability ``need``.

    Args:
        handler: handler of the jobs, where owners differ: buckets whose owners have it come first.
    """

    def __init__(
        self,
        lane: str,
        priority: int,
        need: Durability,
        buckets: BucketDirectory,
        store_limits: dict[str, StoreLimits],
        clock: Clock,
        telemetry: Telemetry | None = None,
        handler: str | None = None,
    ) -> None:
        self.lane = lane
        self.window: int | None = None
        """Of a group for jobs of tenants: jobs waiting in a bucket above which it is full for them."""
        self._handler = handler
        self.priority = priority
        self._need = need
        self._buckets = buckets
        self._store_limits = store_limits
        self._clock = clock
        self._telemetry = telemetry or Telemetry()

    # ------------------------------------------------------------ SavePending

    async def send(self, items: list[bytes]) -> list[Placement | Exception]:
        """``place`` with one answer per item; when a store refuses the batch for one id's time, the others get through."""
        try:
            placed = await self.place(items)
        except ClockSkew as error:
            if len(items) == 1:
                return [error]
            half = len(items) // 2
            return await self.send(items[:half]) + await self.send(items[half:])
        return [placed] * len(items)

    async def place(self, items: list[bytes]) -> Placement:
        """Put encoded entries, all together, into one bucket.

        Raises:
            DurabilityRefused: there are buckets, but no store of them reaches the required level.
            StoreRefused: no bucket took them, and a store that holds one is unfit (functions missing, no access).
            ClockSkew: the time in one of the ids is too far from the store's clock.
            OutcomeUnknown: a store may have taken them, and no other did.
        """
        state = BatchTrial()
        with state.certain():
            return await self._place(items, state)

    async def _place(self, items: list[bytes], state: BatchTrial) -> Placement:
        if not self._buckets.is_fresh():
            await self._buckets.fresh()
        for _ in range(ATTEMPTS_MAX):
            handle = self._choose(state)
            if handle is None:
                if state.renewed or state.full:
                    break
                state.renewed = True
                await self._buckets.renew()
                continue
            level = await self._level_of(handle, state)
            if level is not None and await self._submit(handle, items, state):
                self._telemetry.jobs_submitted[level] += len(items)
                return Placement(level, handle.id)
        return self._nowhere(state)

    def _nowhere(self, state: BatchTrial) -> Placement:
        if state.unknown is not None:
            raise state.unknown
        if state.full:
            return ALL_FULL
        if state.refusal is not None:
            raise state.refusal
        return NO_BUCKET

    async def _submit(self, handle: BucketHandle, items: list[bytes], state: BatchTrial) -> bool:
        capacity = self._capacity(handle)
        handle.unsent += len(items)
        try:
            answer = await handle.store_handle.store.submit(
                handle.id,
                items,
                high_water_jobs=capacity.high_water_jobs,
                high_water_bytes=capacity.high_water_bytes,
                skew_ms_max=capacity.skew_ms_max,
            )
        except OutcomeUnknown as error:
            handle.failed(self._clock.boottime())
            state.answer_lost(handle.id, error)
            return False
        except (Unavailable, Refused) as error:
            self._failed(handle, error, state)
            return False
        finally:
            handle.unsent -= len(items)
        return self._handle_answer(handle, answer, state)

    def _handle_answer(self, handle: BucketHandle, answer: Submitted, state: BatchTrial) -> bool:
        match answer.status:
            case ReplyStatus.OK:
                handle.answered(answer.depth, self._clock.boottime())
                return True
            case ReplyStatus.FULL:
                self._full(handle, answer.depth)
                state.full = True
            case ReplyStatus.CLOSED | ReplyStatus.NO_BUCKET | ReplyStatus.GENERATION:
                self._buckets.note_closed(handle)
            case ReplyStatus.SKEW:
                raise ClockSkew(
                    f"the time in a job's id is {answer.skew_ms / 1000:+.3f} s off the clock of store "
                    f"{handle.store_handle.name!r}",
                    hint="set this machine's clock (NTP), or pass a job_id that was made now",
                )
            case _:
                raise CodeError(f"a store answered {answer.status} to a submit")
        state.tried.add(handle.id)
        return False

    def _capacity(self, handle: BucketHandle) -> StoreLimits:
        capacity = self._store_limits[handle.store_handle.name]
        if self.window is None or self.window >= capacity.high_water_jobs:
            return capacity
        return capacity._replace(high_water_jobs=self.window)

    def _full(self, handle: BucketHandle, depth: int) -> None:
        now = self._clock.boottime()
        handle.answered(depth, now)
        if self.window is None:
            handle.full_until = now + FULL_SECONDS
        else:
            handle.window_full_until = now + WINDOW_FULL_SECONDS

    def _failed(self, handle: BucketHandle, error: Exception, state: BatchTrial) -> None:
        handle.failed(self._clock.boottime())
        state.tried.add(handle.id)
        if isinstance(error, Refused):
            state.refusal = error

    async def _level_of(self, handle: BucketHandle, state: BatchTrial) -> Durability | None:
        """The level that this bucket reaches; ``None`` when it is too low, or its store does not answer."""
        store_handle = handle.store_handle
        level = store_handle.known_level()
        if level is None:
            try:
                level = await store_handle.level()
            except (Unavailable, Refused) as error:
                self._failed(handle, error, state)
                return None
        if store_handle.satisfies(level, self._need):
            return level
        state.refusal = store_handle.refusal(self._need)
        state.tried.add(handle.id)
        return None

    def _choose(self, state: BatchTrial) -> BucketHandle | None:
        if self._handler is not None:
            found = self._choose_among(self._buckets.serving(self.lane, self.priority, self._handler), state)
            if found is not None or state.full:
                return found  # do not fall back to owners without this handler: they would return the jobs
        return self._choose_among(self._buckets.handles(self.lane, self.priority), state)

    def _choose_among(self, handles: Sequence[BucketHandle], state: BatchTrial) -> BucketHandle | None:
        now = self._clock.boottime()
        if state.again:
            open_ = [handle for handle in handles if handle.id not in state.tried]
        else:
            open_ = [handle for handle in handles if handle.avoid_until <= now and handle.id not in state.tried]
        free = [handle for handle in open_ if handle.full_until <= now]
        if self.window is not None:
            free = [handle for handle in free if handle.window_full_until <= now]
        if len(free) < len(open_):
            state.full = True
        if not free:
            return None
        if len(free) == 1:
            return free[0]
        if self._buckets.uneven:
            first, second = two_choices(len(free), random.random(), random.random(), [handle.share for handle in free])
            one, other = free[first], free[second]
            return one if first_gets_job(one.load(now), one.share, other.load(now), other.share) else other
        first, second = two_choices(len(free), random.random(), random.random())
        one, other = free[first], free[second]
        return one if one.depth + one.unsent <= other.depth + other.unsent else other

    # ------------------------------------------------------------ a committed row first

    async def assign(self, master: PlacementMaster, jobs: list[NewJob]) -> tuple[Written, bytes | None]:
        """Rows that are ASSIGNED to a bucket from the start, then the copies into it; HELD rows when no bucket is there, or
        those there are full.

        A put that fails leaves ASSIGNED rows without copies: their owner's anti-entropy gives them back.
        """
        state = BatchTrial()
        with state.certain([job.id for job in jobs]):
            return await self._assign(master, jobs, state)

    async def _assign(
        self, master: PlacementMaster, jobs: list[NewJob], state: BatchTrial
    ) -> tuple[Written, bytes | None]:
        await self._buckets.fresh()
        for _ in range(ATTEMPTS_MAX):
            handle = self._choose(state)
            if handle is None and not state.renewed and not state.full:
                state.renewed = True
                await self._buckets.renew()
                continue
            if handle is None:
                break
            written = await write_once_more(
                partial(master.intake.insert_assigned, handle.id, handle.epoch, jobs), state
            )
            if written.bucket_ok:
                put = await self._put(master, handle, [job for job in jobs if job.id in written.accepted])
                return written, handle.id if put else None
            self._buckets.note_closed(handle)
            state.tried.add(handle.id)
        return await write_once_more(partial(master.intake.insert_held, jobs), state), None

    async def _put(self, master: PlacementMaster, handle: BucketHandle, jobs: list[NewJob]) -> bool:
        """False: the bucket is full, and the rows are HELD."""
        if not jobs:
            return True
        items = [
            (job.due_us, encode_entry(Entry(job.id, 2, job.handler, job.args, job.due_us, job.headers))) for job in jobs
        ]
        capacity = self._capacity(handle)
        handle.unsent += len(jobs)
        try:
            answer = await handle.store_handle.store.put(
                handle.id,
                handle.epoch,
                items,
                high_water_jobs=capacity.high_water_jobs,
                high_water_bytes=capacity.high_water_bytes,
            )
        except (Unavailable, Refused):
            handle.failed(self._clock.boottime())
            return True
        finally:
            handle.unsent -= len(jobs)
        if answer.status is ReplyStatus.OK:
            handle.answered(answer.depth, self._clock.boottime())
        elif answer.status is ReplyStatus.FULL:
            self._full(handle, answer.depth)
            fence = Fence(BucketId(handle.id), handle.epoch, AgentId(handle.owner))
            with suppress(JobMasterError):  # the rows are safe, and their owner's anti-entropy gives them back
                await master.onboarding.release(fence, [(job.id, 2) for job in jobs])
            return False
        else:
            self._buckets.note_closed(handle)
        return True
