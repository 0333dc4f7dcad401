"""Routes checked jobs: into a bucket, to a committed row, or both; and applies the policy when buckets are full.

Toward the store: one coalesced call per (lane, priority). Toward the master: one coalesced insert. A job that finds no
bucket becomes a HELD row; one that finds only full buckets follows the caller's policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from jobmaster.client.bucket_choice import ALL_FULL, BucketGroup, Placement, StoreLimits
from jobmaster.client.bucket_directory import BucketDirectory
from jobmaster.client.coalescer import Coalescer, PendingLimit
from jobmaster.client.dedup import Deduplicator, refuse_another
from jobmaster.client.idempotency_keys import IdempotencyKeys
from jobmaster.client.lost_answers import insert_held
from jobmaster.client.signals.blocked_keys import insert_key_by_key
from jobmaster.client.uniqueness.unique_submits import Mover, UniqueSubmits
from jobmaster.clock import Clock
from jobmaster.codec import decode_entry, encode_entry
from jobmaster.model import ids
from jobmaster.model.errors import (
    BucketsFull,
    InputError,
    JobMasterError,
    OutcomeUnknown,
    Refused,
    Unavailable,
    UnknownLane,
    Unserved,
)
from jobmaster.model.flow.tenant import tenant_of
from jobmaster.model.flow.uniqueness import UniqueRule
from jobmaster.model.job import Durability, Entry, NewJob, OnFull, Priority, Receipt
from jobmaster.model.job_view import JobView
from jobmaster.ports import ClientMaster, FindStore, Written
from jobmaster.rules.backoff import backoff_delays
from jobmaster.rules.placement import Route, route
from jobmaster.settings.model import ClusterSettings
from jobmaster.settings.submit_rules import served_lanes
from jobmaster.telemetry import Telemetry

STORE_CALLS_MAX = 2
"""Calls of one (lane, priority) under way at once: while two are, later jobs gather."""
MASTER_CALLS_MAX = 2
WAITING_ROWS_MAX = 100
"""Jobs of one insert that wait for signals. Each of their keys is a lock in the master until the commit."""
_PAUSE_SECONDS = 0.02
_RECEIPT_SECONDS = 1.0
"""How long a receipt may wait for the bucket directory; without one it does not report that no bucket serves the job."""
_PAUSE_SECONDS_MAX = 0.5


class SubmitRequest(NamedTuple):
    """One job with its checked options."""

    job: NewJob
    durability: Durability
    on_full: OnFull
    allow_volatile: bool
    key: str | None = None
    unique: UniqueRule | None = None
    own_id: bool = False
    """The caller chose the id, so it may exist already."""
    refuses_unserved: bool = False
    """Nothing is stored when no bucket serves the job's lane and priority."""
    waits: bool = False
    """It waits for a signal, in the master."""


class SubmitBatcher(NamedTuple):
    """Batches single submits of one lane and priority."""

    group: BucketGroup
    coalescer: Coalescer[bytes, Placement]


_Key = tuple[str, int, Durability, str | None, bool]
"""Lane, priority, level needed, the handler where agents differ in what they can run, and whether the jobs have tenants."""


class SubmitRouter:
    """Sends each request to a bucket or to the master. Belongs to one event loop."""

    def __init__(
        self,
        settings: ClusterSettings,
        master: ClientMaster,
        stores: Mapping[str, FindStore],
        buckets: BucketDirectory,
        clock: Clock,
        telemetry: Telemetry | None,
        mover: Callable[[], Mover],
    ) -> None:
        self._settings = settings
        self.telemetry = telemetry or Telemetry()
        self.master = master
        self.buckets = buckets
        self._clock = clock
        self.pending_limit = PendingLimit()
        self._deduplicator = Deduplicator(master.queries, stores, buckets, self.pending_limit)
        skew_ms = int(settings.limits.clock_skew_seconds * 1000)
        self._store_limits = {
            name: StoreLimits(store.high_water_jobs, store.high_water_bytes, skew_ms)
            for name, store in settings.stores.items()
        }
        self.batch_max = settings.thresholds.transfer_batch
        """Rows of one insert."""
        self._full_timeout = settings.jobs.on_full_timeout_seconds
        self._groups: dict[_Key, BucketGroup] = {}
        self._batchers: dict[_Key, SubmitBatcher] = {}
        self._assigning: dict[tuple[str, int, bool], Coalescer[NewJob, Receipt]] = {}
        self.keys = IdempotencyKeys(
            master.intake, chunk=self.batch_max, calls_max=MASTER_CALLS_MAX, pending_limit=self.pending_limit
        )
        self.uniques = UniqueSubmits(
            master.uniqueness,
            mover,
            chunk=self.batch_max,
            calls_max=MASTER_CALLS_MAX,
            pending_limit=self.pending_limit,
            telemetry=self.telemetry,
        )
        self._held_rows: Coalescer[NewJob, Receipt] = self._coalescer(self._insert_held)
        self._waiting_rows: Coalescer[NewJob, Receipt] = Coalescer(
            self._insert_waiting, chunk=WAITING_ROWS_MAX, calls_max=MASTER_CALLS_MAX, pending_limit=self.pending_limit
        )
        self._rows: Coalescer[bytes, bool] = self._coalescer(self._have_rows)
        self._served = served_lanes(settings)

    async def close(self) -> None:
        """Finish the calls under way; refuse what has not left."""
        every: list[Coalescer[Any, Any] | Deduplicator | IdempotencyKeys | UniqueSubmits] = [
            self._held_rows,
            self._waiting_rows,
            self._rows,
        ]
        every += [self._deduplicator, self.keys, self.uniques]
        every += [batcher.coalescer for batcher in self._batchers.values()]
        every += self._assigning.values()
        await asyncio.gather(*(batcher.close() for batcher in every))

    # ------------------------------------------------------------ groups of buckets

    async def check_served(self, lane: str) -> None:
        """``UnknownLane`` when no agent serves the lane, by configuration or by the buckets there are."""
        if lane in self._served or lane in self.buckets.lanes():
            return
        await self.buckets.renew()
        known = self._served | self.buckets.lanes()
        if lane not in known:
            raise UnknownLane(
                f"no agent serves lane {lane!r}",
                hint=f"lanes with buckets are {', '.join(sorted(known))}; add it to an agent's lanes in the configuration",
            )

    async def is_unserved(self, lane: str, priority: int, handler: str) -> bool:
        """No agent has a bucket for such jobs, by the master's answer; False while the master does not answer."""
        await self.buckets.known()
        if not self.buckets.is_read or self.buckets.serving(lane, priority, handler):
            return False
        await self.buckets.renew()
        return not self.buckets.serving(lane, priority, handler)

    async def seems_unserved(self, lane: str, priority: int, handler: str) -> bool:
        """`is_unserved` of a job that is stored: nothing is raised, and a master that does not answer is not waited for."""
        try:
            async with asyncio.timeout(_RECEIPT_SECONDS):
                return await self.is_unserved(lane, priority, handler)
        except (TimeoutError, JobMasterError):
            return False

    async def refuse_unserved(self, request: SubmitRequest) -> None:
        """``Unserved`` when no bucket serves the request and the request refuses that."""
        if request.refuses_unserved:
            await self.require_bucket(request.job.lane, request.job.priority, request.job.handler)

    async def require_bucket(self, lane: str, priority: int, handler: str) -> None:
        """``Unserved`` when no bucket serves such jobs."""
        if await self.is_unserved(lane, priority, handler):
            raise Unserved(
                f"no bucket serves {lane}/{Priority(priority).label} for the handler {handler!r}",
                hint="configure buckets for it on some agent, or leave out on_unserved='raise' and let the job wait",
            )

    async def group(
        self, lane: str, priority: int, need: Durability, handler: str, *, tenanted: bool = False
    ) -> BucketGroup:
        """The buckets of a lane and priority; ``UnknownLane`` when no agent serves the lane.

        Args:
            handler: where agents differ in their handlers, buckets whose owners have this one come first.
            tenanted: for jobs with tenants.
        """
        await self.buckets.known()
        key = (lane, priority, need, handler if self.buckets.mixed else None, tenanted)
        group = self._groups.get(key)
        if group is None:
            await self.check_served(lane)
            group = self._groups[key] = self._group(*key)
        return group

    def _group(
        self, lane: str, priority: int, need: Durability, handler: str | None = None, tenanted: bool = False
    ) -> BucketGroup:
        group = BucketGroup(
            lane, priority, need, self.buckets, self._store_limits, self._clock, self.telemetry, handler
        )
        if tenanted:
            group.window = self._settings.tenants.window
        return group

    async def batcher(
        self, lane: str, priority: int, need: Durability, handler: str, *, tenanted: bool = False
    ) -> SubmitBatcher:
        """The batcher of single submits of a lane and priority (and handler, where agents differ)."""
        await self.buckets.known()
        key = (lane, priority, need, handler if self.buckets.mixed else None, tenanted)
        batcher = self._batchers.get(key)
        if batcher is None:
            group = await self.group(lane, priority, need, handler, tenanted=tenanted)
            chunk = self._settings.limits.submit_chunk_jobs
            coalescer = Coalescer(group.send, chunk=chunk, calls_max=STORE_CALLS_MAX, pending_limit=self.pending_limit)
            batcher = self._batchers.setdefault(key, SubmitBatcher(group, coalescer))
        return batcher

    def known_batcher(self, request: SubmitRequest) -> SubmitBatcher | None:
        """The batcher that a plain request like this one used; ``None`` when it went to the master."""
        if request.durability is Durability.MASTER:
            return None
        job, mixed = request.job, self.buckets.mixed
        if job.headers and (self.buckets.lacks(job.headers) or tenant_of(job.headers)):
            return None
        return self._batchers.get((job.lane, job.priority, request.durability, job.handler if mixed else None, False))

    # ------------------------------------------------------------ one request

    async def place(self, request: SubmitRequest) -> Receipt:
        """Route one job.

        Raises:
            BucketsFull: every bucket is full, and the policy is ``raise`` or its time is over.
            Unserved: no agent has a bucket for it, and the request refuses that.
            Conflict: the key or the id belongs to a job with another payload.
            NotUnique: another job holds the unique key, and the request is to be rejected then.
            OutcomeUnknown: it may be stored, under the id that the error names.
            DurabilityRefused, Unavailable, ClockSkew: nothing was stored.
        """
        job = request.job
        await self.check_served(job.lane)
        await self.refuse_unserved(request)
        receipt = await self._place_anew(request)
        if receipt.bucket_id is None and not receipt.duplicate:
            unserved = await self.seems_unserved(job.lane, job.priority, job.handler)
            receipt = receipt._replace(unserved=unserved)
        return receipt

    async def _place_anew(self, request: SubmitRequest) -> Receipt:
        """Route it, unless it is there already."""
        job = request.job
        await self.enter(request.on_full)
        if request.unique is not None:
            compare = self._compare_own if request.own_id else None
            with _about(job):
                return await self.uniques.place(job, request.unique, compare)
        if request.own_id and request.key is None:
            need = None if request.durability is Durability.MASTER else _needed(request)
            if (known := await self._deduplicator.receipt(job, need)) is not None:
                return known
        if request.key is not None:
            return await self._place_keyed(request, request.key)
        with _about(job):
            return await self._place(request)

    async def _place(self, request: SubmitRequest) -> Receipt:
        job = request.job
        where = await self.certain_route(self.route_of(job.due_us, request.durability), job.headers)
        if where is not Route.BUCKET:
            return await self._place_row(request, where)
        tenanted = bool(job.headers) and bool(tenant_of(job.headers))
        batcher = await self.batcher(job.lane, job.priority, _needed(request), job.handler, tenanted=tenanted)
        entry = encode_entry(Entry(job.id, 1, job.handler, job.args, job.due_us, job.headers))
        placed = await batcher.coalescer.put(entry, len(entry))
        if placed.level is None:
            placed = await self.fall_back(entry, placed, batcher, request.on_full)
        return Receipt(job.id, placed.level or Durability.MASTER, placed.bucket_id)

    def route_of(self, due_us: int, durability: Durability) -> Route:
        """The way of a job by the rule of placement."""
        threshold = self._settings.thresholds.transient_threshold_seconds
        return route(due_us, self._clock.wall_us() if due_us else 0, threshold, durability)

    async def certain_route(self, where: Route, headers: bytes) -> Route:
        """That way, or the master while some owner of a bucket does not know what the headers require."""
        if not headers or where is Route.HELD:
            return where
        await self.buckets.known()
        return Route.HELD if self.buckets.lacks(headers) else where

    async def enter(self, on_full: OnFull) -> None:
        """Wait (or raise, by policy) while too much of this process waits for answers."""
        if self.pending_limit.reached:
            await self.pending_limit.wait(0.0 if on_full is OnFull.RAISE else self._full_timeout)

    async def wait_for_room(self, entries: list[bytes], group: BucketGroup, on_full: OnFull) -> Placement:
        """The policy for entries of which every bucket is full: wait, raise, or return ``full`` (then the master takes them).

        Raises:
            BucketsFull: by policy, or because the time is over.
        """
        if group.window is not None:
            on_full = OnFull.SPILL
        ends = self._clock.boottime() + self._full_timeout
        pauses = backoff_delays(_PAUSE_SECONDS, _PAUSE_SECONDS_MAX)
        placed = ALL_FULL
        while placed.full and on_full is not OnFull.SPILL:
            pause = next(pauses)
            if on_full is OnFull.RAISE or self._clock.boottime() + pause > ends:
                waited = "" if on_full is OnFull.RAISE else f" for {self._full_timeout:g} s"
                raise BucketsFull(
                    f"every bucket of lane {group.lane!r}, priority {Priority(group.priority).label!r} is over its "
                    f"high-water mark{waited}",
                    hint="add agents or buckets, or use on_full='spill' to write to the master",
                )
            await asyncio.sleep(pause)
            placed = await group.place(entries)
        return placed

    async def fall_back(self, entry: bytes, placed: Placement, batcher: SubmitBatcher, on_full: OnFull) -> Placement:
        """Place an entry that no bucket took: by the policy when all are full, as a HELD row when there is none."""
        group = batcher.group
        if placed.full:
            placed = await self.wait_for_room([entry], group, on_full)
        if placed.level is None:
            await self._held_rows.put(new_job(entry, group.lane, group.priority), len(entry))
            placed = Placement(Durability.MASTER, None)
        return placed

    # ------------------------------------------------------------ committed rows

    async def _place_row(self, request: SubmitRequest, where: Route) -> Receipt:
        job = request.job
        if request.waits:
            receipt = await self._waiting_rows.put(job, len(job.args))
        elif where is Route.HELD:
            receipt = await self._held_rows.put(job, len(job.args))
        else:
            receipt = await self._assign_batcher(job).put(job, len(job.args))
        if receipt.duplicate:
            if request.own_id:
                await self._compare_own(job)
            else:
                # A fresh id that exists already is our own row, whose first answer was lost.
                receipt = receipt._replace(duplicate=False)
        return receipt

    async def compare(self, job: NewJob) -> None:
        """``Conflict`` when the row of this id is about something else."""
        view: JobView | None = await self.master.queries.get(job.id)
        if view is not None:
            refuse_another(job, view.handler, view.arguments_json)

    async def _compare_own(self, job: NewJob) -> None:
        """``compare`` for a row that may be ours: the first answer to its insert may have been lost."""
        try:
            await self.compare(job)
        except (Unavailable, Refused) as error:
            raise OutcomeUnknown(f"job {ids.text(job.id)} has a row, which cannot be read: {error.message}") from error

    def _assign_batcher(self, job: NewJob) -> Coalescer[NewJob, Receipt]:
        key = (job.lane, job.priority, bool(job.headers) and bool(tenant_of(job.headers)))
        batcher = self._assigning.get(key)
        if batcher is None:
            group = self._group(job.lane, job.priority, Durability.VOLATILE, tenanted=key[2])
            batcher = self._assigning[key] = self._coalescer(partial(self._assign, group))
        return batcher

    async def _assign(self, group: BucketGroup, jobs: list[NewJob]) -> list[Receipt | Exception]:
        written, bucket_id = await group.assign(self.master, jobs)
        self.telemetry.jobs_submitted[Durability.MASTER] += len(written.accepted)
        return _answers(jobs, written, bucket_id)

    async def _insert_held(self, jobs: list[NewJob]) -> list[Receipt | Exception]:
        written = await insert_held(self.master.intake.insert_held, jobs)
        self.telemetry.jobs_submitted[Durability.MASTER] += len(written.accepted)
        return _answers(jobs, written, None)

    async def _insert_waiting(self, jobs: list[NewJob]) -> list[Receipt | Exception]:
        try:
            return await self._hold_waiting(jobs)
        except Unavailable as error:
            if not error.blocked:
                raise
            answers = await insert_key_by_key(self._hold_waiting, jobs, error, MASTER_CALLS_MAX)
            return [answers[job.id] for job in jobs]

    async def _hold_waiting(self, jobs: list[NewJob]) -> list[Receipt | Exception]:
        written = await insert_held(self.master.signals.hold_waiting, jobs)
        self.telemetry.jobs_submitted[Durability.MASTER] += len(written.accepted)
        return _answers(jobs, written, None)

    # ------------------------------------------------------------ idempotency keys

    async def _place_keyed(self, request: SubmitRequest, key: str) -> Receipt:
        """Reserve the key, then write the row of its holder: at most one row per key, whichever producer dies when.

        A key whose job has no row was reserved by a producer that died before the insert (or is about to insert): the same
        payload is inserted under the reserved id, and the primary key lets one of them win.
        """
        with _about(request.job):
            job, known = await self.keys.resolve(request.job, key)
        if known and await self._rows.put(job.id, 16):
            return Receipt(job.id, Durability.MASTER, None, True)
        where = self.route_of(job.due_us, Durability.MASTER)
        try:
            with _about(job):
                receipt = await self._place_row(request._replace(job=job, own_id=False), where)
        except InputError:
            if not known:
                raise
            # The key outlived its job: it was finished, and its partition has been dropped since.
            return Receipt(job.id, Durability.MASTER, None, True)
        return receipt._replace(duplicate=known)

    async def _have_rows(self, job_ids: list[bytes]) -> list[bool | Exception]:
        states = await self.master.queries.states(job_ids)
        return [job_id in states for job_id in job_ids]

    def _coalescer(self, send: Any) -> Coalescer[Any, Any]:
        return Coalescer(send, chunk=self.batch_max, calls_max=MASTER_CALLS_MAX, pending_limit=self.pending_limit)


@contextmanager
def _about(job: NewJob) -> Iterator[None]:
    """``OutcomeUnknown`` of a call for many jobs names this one alone to its caller."""
    try:
        yield
    except OutcomeUnknown as error:
        raise OutcomeUnknown(error.message, id_bytes=[job.id]) from error


def _answers(jobs: list[NewJob], written: Written, bucket_id: bytes | None) -> list[Receipt | Exception]:
    """One receipt per job; ``duplicate`` where the row was there before."""
    answers: list[Receipt | Exception] = []
    for job in jobs:
        if job.id in written.accepted or job.id in written.cancelled:
            answers.append(Receipt(job.id, Durability.MASTER, bucket_id))
        elif job.id in written.quarantined:
            answers.append(
                InputError(
                    f"job {ids.text(job.id)} is older than what the master keeps, or outside its partitions",
                    hint="submit it with a new id",
                )
            )
        elif job.id in written.refused:
            answers.append(Receipt(job.id, Durability.MASTER, None, True))
        else:
            answers.append(OutcomeUnknown(f"the master gave no result for job {job.id.hex()}", id_bytes=[job.id]))
    return answers


def new_job(entry: bytes, lane: str, priority: int) -> NewJob:
    """The row of an entry that goes to the master after all."""
    job = decode_entry(entry)
    return NewJob(job.id, priority, lane, job.handler, job.args, job.headers, job.due_us)


def _needed(request: SubmitRequest) -> Durability:
    """What the acknowledgement of a bucket must be worth."""
    return Durability.VOLATILE if request.allow_volatile else request.durability
